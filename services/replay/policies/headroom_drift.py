"""`headroom_drift` (the paper's method): by cached Headroom, descending; used when Drift <= tau."""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Policy


def order(buffer: Buffer, n: int, seed: int) -> NDArray[np.intp]:
    """The n groups of highest cached Headroom; equal ones in the order they were stored."""
    return buffer.highest(buffer.headroom, n)


POLICY = Policy("headroom_drift", order, gated=True)
