"""Headroom of a group from stored arrays, in numpy, for the actor; the learner computes it in torch."""

import numpy as np
from numpy.typing import ArrayLike


def headroom(logprobs: ArrayLike, advantages: ArrayLike, form: str = "sign") -> float:
    """Mean over tokens of 1 - p where the response's advantage is positive, p where negative, 0 where zero.

    logprobs: float[T], of each sampled token; advantages: float[T], of its response, of which only the sign enters;
    with form "advantage" each token counts |A| times.
    1 - p is taken as -expm1(log p), which keeps its digits when p is near 1.
    """
    logp = np.minimum(np.asarray(logprobs, np.float32), 0.0)
    a = np.asarray(advantages)
    h = np.where(a > 0, -np.expm1(logp), np.where(a < 0, np.exp(logp), 0.0))
    if form == "advantage":
        h = h * np.abs(a)
    return float(h.mean(dtype=np.float64))
