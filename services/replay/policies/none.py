"""`none`: plain GRPO. Nothing is stored, nothing is replayed."""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Policy


def order(buffer: Buffer, n: int, seed: int) -> NDArray[np.intp]:
    """No group."""
    return np.zeros(0, np.intp)


POLICY = Policy("none", order, gated=False, keeps=False)
