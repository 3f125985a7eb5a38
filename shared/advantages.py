"""Group-relative advantages: computed once, by the actor, and frozen with the group."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STD_FLOOR = 1e-3  # below it the spread is rounding residue, and the advantage is 0
_EPSILON = 1e-6


def group_advantages(rewards: Sequence[float | None], form: str = "std") -> NDArray[np.float32]:
    """r - mean over the scored rewards, float32[G]; 0 where the reward is None.

    form: "std", over the standard deviation as well (GRPO); "mean", as it is (Dr. GRPO, arXiv 2503.20783, where the
    division is held to favour questions that are nearly always or nearly never answered).
    The standard deviation is the sample one (n - 1), as in the common GRPO trainers; below STD_FLOOR: zeros.
    Fewer than two scored rewards is a caller's error: such a group is dropped before.
    """
    scored = np.array([r for r in rewards if r is not None], np.float64)
    assert len(scored) >= 2, "a group needs at least two scored rollouts"
    out = np.zeros(len(rewards), np.float32)
    std = scored.std(ddof=1)
    if std >= STD_FLOOR:
        where = [r is not None for r in rewards]
        out[where] = (scored - scored.mean()) / (std + _EPSILON if form == "std" else 1.0)
    return out
