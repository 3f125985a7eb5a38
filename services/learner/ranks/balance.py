"""Which rank trains which group: within each mini-batch the ranks' tokens are as even as whole groups allow. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.learner.model.batching import mini_batches


@dataclass(frozen=True)
class Load:
    """A group before it is read. `size`: of its payload, which grows with its tokens."""

    id: str
    size: int
    joins: str = ""


def owners(loads: Sequence[Load], mini_batch: int, ranks: int) -> dict[str, int]:
    """The rank of each group, by id.

    The largest first, each to the rank with the least so far (Graham 1969: at most 4/3 of the best). Groups that are
    averaged with one another stay together.
    """
    out: dict[str, int] = {}
    for batch in mini_batches(loads, mini_batch):
        there = {load.id for load in batch}
        units: dict[str, list[Load]] = {}
        for load in batch:
            units.setdefault(load.joins if load.joins in there else load.id, []).append(load)
        held = [0] * ranks
        for unit in sorted(units.values(), key=lambda unit: -sum(load.size for load in unit)):
            rank = min(range(ranks), key=lambda r: held[r])
            held[rank] += sum(load.size for load in unit)
            out |= dict.fromkeys((load.id for load in unit), rank)
    return out
