"""`headroom_only` (the paper's ablation): as `headroom_drift`, and every group that was scanned is used.

The scan stays, since it is what refreshes the cached Headroom: only the gate is off. With tau = infinity
`headroom_drift` is the same policy.
Bound: a step replays exactly K groups, or all that can be read; no group is passed over for one of lower cached
Headroom. Nothing bounds their Drift.
Source: arXiv 2609.03941, the ablation on MATH-500.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy, whatever_was_measured


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The n groups of highest cached Headroom; equal ones in the order they were stored."""
    return buffer.highest(buffer.headroom, n)


POLICY = Policy(name="headroom_only", order=order, accepts=whatever_was_measured)
