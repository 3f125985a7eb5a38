"""`none`: plain GRPO. Nothing is stored, nothing is replayed.

Bound: the buffer is empty at every step.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy, nothing


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """No group."""
    return np.zeros(0, np.intp)


POLICY = Policy(name="none", order=order, accepts=None, keeps=nothing)
