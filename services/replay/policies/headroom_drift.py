"""`headroom_drift` (the paper's method): by cached Headroom, descending; used when Drift <= tau.

Bound: under the weights that the step begins with, every replayed group has Drift <= tau, hence a Headroom within
sqrt(tau) of its frozen one. No group is passed over for one of lower cached Headroom, but by the gate.
Source: arXiv 2609.03941, method.md section 3.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The n groups of highest cached Headroom; equal ones in the order they were stored."""
    return buffer.highest(buffer.headroom, n)


POLICY = Policy(name="headroom_drift", order=order)
