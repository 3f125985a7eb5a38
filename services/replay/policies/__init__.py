"""What is kept, in which order stored groups are considered, and whether Drift decides. One small file per policy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer

Order = Callable[[Buffer, int, int], NDArray[np.intp]]


@dataclass(frozen=True)
class Policy:
    """A replay policy.

    order(buffer, n, seed): the slots of the n first groups to consider, best first; fewer when the buffer holds fewer.
        A larger n extends the same order. `seed` is the step's own.
    gated: whether a group must be scanned and pass Drift <= tau to be used.
    keeps: whether mixed-outcome groups are stored at all.
    """

    name: str
    order: Order
    gated: bool
    keeps: bool = True


def get_policy(name: str) -> Policy:
    """The policy of this name; the configuration has checked that there is one."""
    from services.replay.policies import headroom_drift, naive, none, uniform

    return {p.name: p for p in (none.POLICY, naive.POLICY, uniform.POLICY, headroom_drift.POLICY)}[name]
