"""`fail_rate`: by the share of wrong responses, 1 - q, descending; used when Drift <= tau.

A control for Headroom. Where most tokens have a probability near 1, Headroom is close to the share of tokens in wrong
responses; what Headroom gains over this control is what it says beyond that.
Bound: every replayed group has Drift <= tau, and no group that was not scanned failed more often than a replayed one.
A score of G - 1 values has many ties: the newest of equal groups goes first, since nothing else tells them apart.
Source: this project's control.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The n groups of highest 1 - q = wrong / scored, newest first among equals."""
    scored = np.maximum(buffer.scored, 1).astype(np.float64)
    return buffer.highest((scored - buffer.right) / scored, n, newest_first=True)


POLICY = Policy(name="fail_rate", order=order)
