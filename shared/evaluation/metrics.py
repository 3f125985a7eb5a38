"""Metrics of one question from n samples: what k <= n of them are worth on average over all choices of k.

    Mean@k       the mean score; the same for every k
    Best@k       the best score of k samples
    pass@k       whether one of k samples is right (Chen et al. 2021, arXiv 2107.03374): Best@k of right and wrong
    majority@k   whether the answer that most of k samples give is right

Each is the exact expectation over the subsets of k samples, so n > k samples give a better estimate of the same
quantity; with n = k it is the plain value. Only majority@k has no closed form: beyond SUBSETS choices it is the mean
over that many drawn with a fixed seed.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

SUBSETS = 2000


def mean_at_k(scores: Sequence[float]) -> float:
    """The mean of the scores [n]; its expectation over subsets does not depend on k."""
    return float(np.mean(scores))


def best_at_k(scores: Sequence[float], k: int) -> float:
    """The expected best of k of the scores [n].

    The i-th smallest (i from 0) is the best of comb(i, k - 1) of the comb(n, k) subsets.
    """
    n = len(scores)
    _check(n, k)
    return sum(score * (comb(i, k - 1) / comb(n, k)) for i, score in enumerate(sorted(scores)) if i >= k - 1)


def pass_at_k(right: Sequence[bool], k: int) -> float:
    """The share of subsets of k samples with a right one among them: 1 - comb(n - c, k) / comb(n, k), c = how many."""
    n, c = len(right), sum(right)
    _check(n, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def majority_at_k(votes: Sequence[int | None], right: Sequence[bool], k: int) -> float:
    """The share of subsets of k samples whose most frequent answer is right.

    votes [n]: which answer a sample gives, equal answers the same number; None gave none and does not vote. Between
    answers with equally many votes the one seen first wins. Where nobody votes, the question is answered wrongly. An
    answer is right when the first sample that gave it was.
    """
    n = len(votes)
    _check(n, k)
    named = list(dict.fromkeys(vote for vote in votes if vote is not None))
    if not named:
        return 0.0
    gave = np.array([[vote == name for name in named] for vote in votes])  # [n, answers]
    is_right = np.array([right[votes.index(name)] for name in named])
    in_subset = gave[_subsets(n, k)]  # [subsets, k, answers]
    counts = in_subset.sum(1)
    first = in_subset.argmax(1)
    winner = np.where(counts > 0, counts * k - first, -1).argmax(1)
    return float((is_right[winner] & (counts.max(1) > 0)).mean())


@lru_cache(maxsize=64)
def _subsets(n: int, k: int) -> npt.NDArray[np.intp]:
    """Ascending choices of k of n, [subsets, k]: all of them, or SUBSETS drawn ones where there are more."""
    if comb(n, k) <= SUBSETS:
        return np.array(list(combinations(range(n), k)), np.intp)
    order = np.random.default_rng([n, k]).random((SUBSETS, n)).argsort(1)
    return np.sort(order[:, :k], axis=1)


def _check(n: int, k: int) -> None:
    assert 1 <= k <= n, f"{k} of {n} samples"
