"""`naive` (the paper's control): the newest groups, newest first, without a gate."""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Policy


def order(buffer: Buffer, n: int, seed: int) -> NDArray[np.intp]:
    """By insertion, last first."""
    return buffer.oldest_first()[::-1][:n]


POLICY = Policy("naive", order, gated=False)
