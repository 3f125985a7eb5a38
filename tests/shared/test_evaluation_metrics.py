"""Metrics of k samples against brute force over all subsets, and means against their definitions."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from shared.evaluation import metrics
from shared.evaluation.intervals import means
from shared.evaluation.metrics import best_at_k, majority_at_k, mean_at_k, pass_at_k


def subsets(n: int, k: int) -> list[tuple[int, ...]]:
    return list(combinations(range(n), k))


def plain_majority(votes: list[int | None], right: list[bool]) -> bool:
    """One set of samples, written out: count, find the most, take the first of those."""
    cast = [vote for vote in votes if vote is not None]
    if not cast:
        return False
    most = max(Counter(cast).values())
    winner = next(vote for vote in cast if Counter(cast)[vote] == most)
    return right[votes.index(winner)]


@pytest.mark.parametrize("seed", range(60))
def test_every_metric_is_the_mean_over_all_subsets(seed: int):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    scores = rng.choice([0.0, 0.25, 1.0], n).tolist()
    kinds = int(rng.integers(1, 5))
    is_right = rng.random(kinds) < 0.4
    votes = [None if rng.random() < 0.15 else int(rng.integers(kinds)) for _ in range(n)]
    right = [vote is not None and bool(is_right[vote]) for vote in votes]
    for k in range(1, n + 1):
        chosen = subsets(n, k)
        assert mean_at_k(scores) == pytest.approx(np.mean([np.mean([scores[i] for i in c]) for c in chosen]))
        assert best_at_k(scores, k) == pytest.approx(np.mean([max(scores[i] for i in c) for c in chosen]))
        assert pass_at_k(right, k) == pytest.approx(np.mean([any(right[i] for i in c) for c in chosen]))
        majority = [plain_majority([votes[i] for i in c], [right[i] for i in c]) for c in chosen]
        assert majority_at_k(votes, right, k) == pytest.approx(np.mean(majority))


def test_best_of_right_and_wrong_is_pass():
    right = [True, False, False, True, False, False]
    for k in range(1, 7):
        assert best_at_k([float(r) for r in right], k) == pytest.approx(pass_at_k(right, k))


def test_all_samples_give_the_plain_values():
    assert best_at_k([0.2, 0.9, 0.1], 3) == pytest.approx(0.9)
    assert pass_at_k([False, False, True], 3) == 1.0
    assert pass_at_k([False, False, False], 3) == 0.0


def test_a_tie_goes_to_the_answer_seen_first():
    assert majority_at_k([5, 2, 2, 5], [True, False, False, True], 4) == 1.0
    assert majority_at_k([2, 5, 5, 2], [False, True, True, False], 4) == 0.0


def test_who_gives_no_answer_does_not_vote():
    assert majority_at_k([None, None, None, 1], [False, False, False, True], 4) == 1.0
    assert majority_at_k([None, None], [False, False], 2) == 0.0


def test_many_subsets_are_drawn_and_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch):
    votes = [0, 0, 0, 0, 1, 1, 1, 2, 2, None, 0, 1, 1, 2]
    right = [vote == 0 for vote in votes]
    monkeypatch.setattr(metrics, "SUBSETS", 10**6)
    metrics._subsets.cache_clear()
    exact = majority_at_k(votes, right, 6)
    monkeypatch.setattr(metrics, "SUBSETS", 2000)
    metrics._subsets.cache_clear()
    drawn = majority_at_k(votes, right, 6)
    assert drawn == majority_at_k(votes, right, 6)
    assert 0 < exact < 1
    assert drawn == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 2000) ** 0.5)


def test_macro_counts_sources_and_weighted_counts_questions():
    found = means({"a": [1.0, 1.0, 0.0, 0.0], "b": [1.0]})
    assert found.sources["a"].value == 0.5
    assert found.macro.value == pytest.approx((0.5 + 1.0) / 2)
    assert found.weighted.value == pytest.approx(3 / 5)


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        values = rng.random(80) < 0.3
        found = means({"a": values}, seed=trial).weighted
        assert found.low <= found.value <= found.high
        covered += found.low <= 0.3 <= found.high
    assert 180 <= covered <= 199


def test_the_interval_is_that_of_the_standard_error():
    values = np.random.default_rng(1).random(500)
    found = means({"a": values}).macro
    half = 1.96 * values.std() / 500**0.5
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)
    assert means({"a": values}) == means({"a": values})


def test_sources_are_resampled_apart():
    found = means({"a": [0.0] * 50, "b": [1.0] * 5})
    assert (found.macro.low, found.macro.high) == (0.5, 0.5)
