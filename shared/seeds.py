"""Seeds that differ per run, task, attempt, rollout and turn, and are the same whenever those are."""

import numpy as np


def derive(*parts: int) -> int:
    """A 63-bit seed from non-negative integers; any change in any of them gives an unrelated one."""
    return int(np.random.SeedSequence(list(parts)).generate_state(2, np.uint32).view(np.uint64)[0] >> 1)
