"""`variance`: by the variance of a response's outcome, q (1 - q), descending; used when Drift <= tau.

A control for Headroom: the usual way of preferring prompts of middling difficulty, with the gate that Headroom has.
Bound: every replayed group has Drift <= tau, and no group that was not scanned has a larger q (1 - q) than a replayed
one. The newest of equal groups goes first, as in `fail_rate`.
Source: this project's control.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The n groups of highest right * wrong / scored^2, a form in which q and 1 - q tie exactly."""
    scored = np.maximum(buffer.scored, 1).astype(np.float64)
    return buffer.highest(buffer.right * (scored - buffer.right) / scored**2, n, newest_first=True)


POLICY = Policy(name="variance", order=order)
