"""`uniform`: groups drawn uniformly without replacement, without a gate."""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Policy


def order(buffer: Buffer, n: int, seed: int) -> NDArray[np.intp]:
    """The first n of the permutation that `seed` gives, so that a restarted step draws the same."""
    return np.random.default_rng(seed).permutation(buffer.oldest_first())[:n]


POLICY = Policy("uniform", order, gated=False)
