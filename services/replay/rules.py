"""What several policies are made of: gates, orders, and what is kept, trained and evicted. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from shared.messages import GroupHeader, Record


@dataclass(frozen=True)
class Moment:
    """When a policy is asked. `step`: the step that is selected for; a stored group's age is step - buffer.step.
    `seed`: the step's own, the same again when the selection has to be started over.
    """

    step: int
    seed: int
    asked: frozenset[int] = frozenset()  # questions asked again whose groups are still to be trained


def within_tau(record: Record, tau: float) -> bool:
    """The paper's gate: Drift <= tau."""
    return record.drift <= tau


def whatever_was_measured(record: Record, tau: float) -> bool:
    """The gate that stands open: a group is scanned for its current Headroom alone."""
    return True


def mixed(header: GroupHeader) -> bool:
    """The paper's ingress: some answers right, some wrong."""
    return header.mixed


def nothing(header: GroupHeader) -> bool:
    """No group."""
    return False


def everything(header: GroupHeader) -> bool:
    """Every group."""
    return True


def no_slots(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The order of a policy that replays nothing."""
    return np.zeros(0, np.intp)


def oldest(buffer: Buffer, capacity: int) -> list[str]:
    """The paper's eviction: first in, first out."""
    return buffer.over_capacity(capacity)


def newest_first(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """By insertion, last first."""
    return buffer.highest(buffer.sequence, n)


def by_headroom(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The n groups of highest cached Headroom; equal ones in the order they were stored."""
    return buffer.highest(buffer.headroom, n)


def has_spread(header: GroupHeader) -> bool:
    """Whether an advantage is not 0: the rewards' standard deviation is above the floor of shared.advantages."""
    return any(header.signs)


def older_than(steps: int) -> Callable[[Buffer, int], list[str]]:
    """Eviction of what no later step may use because of its age, and then of the oldest over capacity."""

    def too_old(buffer: Buffer, capacity: int) -> list[str]:
        slots = buffer.oldest_first()
        next_step = buffer.step[slots].max(initial=0) + 1
        expired = int(np.count_nonzero(next_step - buffer.step[slots] > steps))
        return buffer.ids(slots[: max(expired, len(slots) - capacity)])

    return too_old
