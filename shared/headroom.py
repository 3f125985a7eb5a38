"""Headroom of a group from stored arrays, in numpy, for the actor; the learner computes it in torch."""

import numpy as np
from numpy.typing import ArrayLike


def headroom(logprobs: ArrayLike, signs: ArrayLike) -> float:
    """Mean over tokens of 1 - p where the response's advantage is positive, p where negative, 0 where zero.

    logprobs: float[T], of each sampled token; signs: int[T], the sign of its response's advantage.
    1 - p is taken as -expm1(log p), which keeps its digits when p is near 1.
    """
    logp = np.minimum(np.asarray(logprobs, np.float32), 0.0)
    s = np.asarray(signs)
    h = np.where(s > 0, -np.expm1(logp), np.where(s < 0, np.exp(logp), 0.0))
    return float(h.mean(dtype=np.float64))
