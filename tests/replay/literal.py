"""The simple policies once more, slowly and word by word: lists, sorts and loops over whole headers."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from shared.advantages import group_advantages
from shared.messages import GroupHeader, Record


@dataclass
class Stored:
    """A stored group; a list of them is the buffer, oldest first."""

    header: GroupHeader
    step: int
    headroom: float  # cached

    @property
    def id(self) -> str:
        return self.header.id

    @cached_property
    def score(self) -> float:
        return heap_score(self.header)


def wrong_share(g: Stored) -> Fraction:
    outcomes = [c for c, r in zip(g.header.correct, g.header.rewards, strict=True) if r is not None]
    return Fraction(outcomes.count(False), len(outcomes))


def heap_score(header: GroupHeader) -> float:
    """sum |A| x std; each factor in single precision, as the buffer keeps it."""
    advantages = group_advantages(header.rewards)
    return float(np.float32(np.abs(advantages).sum())) * float(np.float32(np.std(header.scored, ddof=1)))


def by_headroom(stored: list[Stored], seed: int) -> list[Stored]:
    return sorted(stored, key=lambda g: -g.headroom)  # a stable sort: equal ones stay oldest first


def newest(stored: list[Stored], seed: int) -> list[Stored]:
    return list(reversed(stored))


def drawn(stored: list[Stored], seed: int) -> list[Stored]:
    return [stored[i] for i in np.random.default_rng(seed).permutation(len(stored))]


def by_failures(stored: list[Stored], seed: int) -> list[Stored]:
    return sorted(newest(stored, seed), key=lambda g: -wrong_share(g))


def by_variance(stored: list[Stored], seed: int) -> list[Stored]:
    return sorted(newest(stored, seed), key=lambda g: -(wrong_share(g) * (1 - wrong_share(g))))


def raced(stored: list[Stored], seed: int) -> list[Stored]:
    rng = np.random.default_rng(seed)
    arrival = {g.id: rng.exponential() / g.score for g in stored}
    return sorted(stored, key=lambda g: arrival[g.id])


ORDERS: dict[str, Callable[[list[Stored], int], list[Stored]]] = {
    "none": lambda stored, seed: [],
    "naive": newest,
    "uniform": drawn,
    "headroom_drift": by_headroom,
    "headroom_only": by_headroom,
    "drift_only": newest,
    "fail_rate": by_failures,
    "variance": by_variance,
    "trl_buffer": raced,
}
GATED = {"headroom_drift", "drift_only", "fail_rate", "variance"}
SCANNED = GATED | {"headroom_only"}


def choose(
    name: str, stored: list[Stored], K: int, tau: float, seed: int, measure: Callable[[str], Record]
) -> tuple[list[str], dict[str, Record]]:
    """Section 3, points 2 and 3: what is accepted, best first, and what was measured on the way."""
    accepted: list[str] = []
    measured: dict[str, Record] = {}
    for group in ORDERS[name](stored, seed):
        if len(accepted) == K:
            break
        if name in SCANNED:
            measured[group.id] = measure(group.id)
        if name not in GATED or measured[group.id].drift <= tau:
            accepted.append(group.id)
    return accepted, measured


def compose(name: str, accepted: list[str], fresh: list[GroupHeader], unit: int) -> tuple[list[str], list[str]]:
    """Point 4: the replayed groups, and the fresh ones that they replace."""
    without_spread = [h.id for h in fresh if len(set(h.scored)) == 1]
    if name == "trl_buffer":
        accepted = accepted[: len(without_spread)]
    while len(accepted) % unit:
        accepted = accepted[:-1]
    return accepted, without_spread[: len(accepted)] if name == "trl_buffer" else []


def append(name: str, stored: list[Stored], new: list[Stored], capacity: int) -> list[Stored]:
    """Point 6: the buffer after the step."""
    if name == "none":
        return []
    if name != "trl_buffer":
        mixed = [g for g in new if 0 < wrong_share(g) < 1]
        return (stored + mixed)[-capacity:]
    stored = list(stored)
    for group in new:
        if len(set(group.header.scored)) == 1:
            continue
        lowest = min((g.score for g in stored), default=0.0)
        if len(stored) == capacity and group.score <= lowest:
            continue
        if len(stored) == capacity:
            stored.remove([g for g in stored if g.score == lowest][-1])
        stored.append(group)
    return stored
