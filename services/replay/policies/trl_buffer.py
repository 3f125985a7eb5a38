"""`trl_buffer`: groups without reward spread give their place to stored groups, drawn by how much they teach.

Score of a group: sum |A| x std of its rewards. The buffer is a min-heap of scores: at capacity a group enters only
above the lowest score, which then leaves. As many stored groups are drawn, in proportion to their scores and without
replacement, as the step has fresh groups of equal rewards, and they take these groups' places: a batch is never
larger than b. There is no scan; the ratio is to the stored l_ref.

Bound: a step replays at most as many groups as it had fresh ones without spread, and never one without spread; no
group that was turned away or pushed out has a higher score than the lowest that is stored.
Source: the experimental `GRPOWithReplayBufferTrainer` of TRL, whose capacity is 64 (`replay.capacity`). Two
differences: nothing is replayed in the step it was fresh in, and where fewer are stored than are wanted each is used
once and the other places keep their fresh group; TRL then draws with replacement.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy
from services.replay.rules import has_spread
from shared.messages import GroupHeader


def score(buffer: Buffer, slots: NDArray[np.intp]) -> NDArray[np.float64]:
    """sum |A| x std, of the groups in these slots."""
    return buffer.advantage[slots].astype(np.float64) * buffer.reward_std[slots]


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The first n of successive draws in proportion to score: ascending exponential variates over the scores."""
    slots = buffer.oldest_first()
    race = np.random.default_rng(moment.seed).exponential(size=len(slots)) / score(buffer, slots)
    return slots[np.argsort(race, kind="stable")][:n]


def evicts(buffer: Buffer, capacity: int) -> list[str]:
    """The lowest scores beyond capacity; of equal ones the newest, which do not beat what is there."""
    slots = buffer.oldest_first()
    lowest = np.lexsort((-buffer.sequence[slots], score(buffer, slots)))
    return buffer.ids(slots[lowest][: max(0, len(slots) - capacity)])


def replaces(header: GroupHeader) -> bool:
    """A fresh group that teaches nothing, since its rewards are equal."""
    return not has_spread(header)


POLICY = Policy(name="trl_buffer", order=order, accepts=None, keeps=has_spread, evicts=evicts, replaces=replaces)
