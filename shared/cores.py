"""How the processes of a run share the cores of a machine: one rule, whoever starts them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.config import Config


def available() -> list[int]:
    """The cores that this process may run on, by number."""
    return sorted(os.sched_getaffinity(0))


def thread_shares(config: Config, cores: int) -> tuple[int, int]:
    """(CPU threads of each rank of the learner, CPU threads of each actor), as configured where they are.

    Half of the cores is for the learner, half for the actors; all of them for a learner beside whom there are none.
    """
    ranks, actors, half = config.learner.ranks, config.actor.count, cores // 2
    learner = max(1, (half if actors else cores) // ranks)
    return config.learner.threads or learner, config.actor.threads or max(1, half // max(actors, 1))
