"""The stored groups as arrays: one slot per group, columns in numpy, nothing of a group's tokens.

The columns cost 60 bytes a group, its id and the way from it to the slot about 130 more; ids are the only Python
objects. Slots are reused after eviction; `sequence` is the order of insertion and decides ties and eviction.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from shared.messages import LARGEST

PART = 64  # values whose highest stands for them


# what fits the columns, and orders
Place = Annotated[int, Meta(ge=0, lt=2**31)]
Few = Annotated[int, Meta(ge=0, lt=2**15)]
Headroom = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a stored group besides its header; the durable form of a slot."""

    id: str
    sequence: Annotated[int, Meta(ge=0, lt=2**62)]  # order of insertion, over the whole run
    step: Place  # the step whose fresh groups it was among
    headroom_ref: Headroom  # under the policy that generated it; frozen
    headroom: Headroom  # cached: as last measured
    drift: float  # as last measured; NaN: never
    uses: Place  # how often it was replayed
    tokens: Place  # |T|
    bytes: Annotated[int, Meta(ge=0, lt=2**32)]  # in Redis: of its payload, and of its l_ref where that is kept
    prompt: Annotated[int, Meta(ge=-1, lt=2**31)] = -1  # place of its question in the data set
    right: Few = 0  # scored responses that are right
    scored: Few = 0  # responses with a reward
    reward_mean: float = 0.0  # over the scored responses, and their standard deviation (n - 1)
    reward_std: float = 0.0
    advantage: float = 0.0  # sum of |A| over the responses
    responses: Annotated[
        list[float], Meta(max_length=4096)
    ] = []  # a number for each, 0 where it cannot be used: Policy.responses


class Buffer:
    """Groups by slot. Columns may be read as arrays over `slots()`; change them only through the methods."""

    def __init__(self, rows: Iterable[StoredGroup] = ()) -> None:
        self._size = 0
        self._slot: dict[str, int] = {}
        self._ids: list[str] = []
        self._free: list[int] = []
        self.responses = np.zeros((0, 0), np.float32)  # float32[slots, G], no columns while no row brings any
        self._allocate(64)
        for row in sorted(rows, key=lambda r: r.sequence):
            self.insert(row)

    def _allocate(self, capacity: int) -> None:
        def grown(name: str, dtype: type, fill: float) -> NDArray:
            new = np.full(capacity, fill, dtype)
            if self._size:
                new[: self._size] = getattr(self, name)[: self._size]
            return new

        self.sequence = grown("sequence", np.int64, -1)  # -1: the slot is empty
        self.step = grown("step", np.int32, 0)
        self.headroom_ref = grown("headroom_ref", np.float32, 0.0)
        self.headroom = grown("headroom", np.float64, 0.0)
        self.drift = grown("drift", np.float32, np.nan)
        self.uses = grown("uses", np.int32, 0)
        self.tokens = grown("tokens", np.int32, 0)
        self.bytes = grown("bytes", np.uint32, 0)
        self.prompt = grown("prompt", np.int32, -1)
        self.right = grown("right", np.int16, 0)
        self.scored = grown("scored", np.int16, 0)
        self.reward_mean = grown("reward_mean", np.float32, 0.0)
        self.reward_std = grown("reward_std", np.float32, 0.0)
        self.advantage = grown("advantage", np.float32, 0.0)
        self._widen(self.responses.shape[1])

    def _widen(self, width: int) -> None:
        """Room for `width` responses in every slot."""
        old = self.responses
        self.responses = np.zeros((len(self.sequence), width), np.float32)
        self.responses[: len(old), : old.shape[1]] = old

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, id: str) -> bool:
        return id in self._slot

    def __iter__(self) -> Iterator[StoredGroup]:
        """Oldest first."""
        return (self.row(self._ids[slot]) for slot in self.oldest_first())

    def ids(self, slots: NDArray[np.intp]) -> list[str]:
        """The group ids in these slots."""
        return [self._ids[slot] for slot in slots.tolist()]

    def row(self, id: str) -> StoredGroup:
        """A copy of one group's columns."""
        i = self._slot[id]
        return StoredGroup(
            id=id,
            sequence=int(self.sequence[i]),
            step=int(self.step[i]),
            headroom_ref=float(self.headroom_ref[i]),
            headroom=float(self.headroom[i]),
            drift=float(self.drift[i]),
            uses=int(self.uses[i]),
            tokens=int(self.tokens[i]),
            bytes=int(self.bytes[i]),
            prompt=int(self.prompt[i]),
            right=int(self.right[i]),
            scored=int(self.scored[i]),
            reward_mean=float(self.reward_mean[i]),
            reward_std=float(self.reward_std[i]),
            advantage=float(self.advantage[i]),
            responses=self.responses[i].tolist(),
        )

    def insert(self, row: StoredGroup) -> None:
        """Store a group that is not there yet."""
        assert row.id not in self._slot, f"group {row.id} is stored already"
        if self._free:
            i = self._free.pop()
        else:
            if self._size == len(self.sequence):
                self._allocate(self._size + max(64, self._size // 8))
            i = self._size
            self._size += 1
            self._ids.append("")
        self._slot[row.id], self._ids[i] = i, row.id
        self.sequence[i], self.step[i], self.uses[i], self.tokens[i] = row.sequence, row.step, row.uses, row.tokens
        self.bytes[i], self.prompt[i], self.right[i], self.scored[i] = row.bytes, row.prompt, row.right, row.scored
        self.reward_mean[i], self.reward_std[i], self.advantage[i] = row.reward_mean, row.reward_std, row.advantage
        if len(row.responses) > self.responses.shape[1]:
            self._widen(len(row.responses))
        self.responses[i] = 0.0
        self.responses[i, : len(row.responses)] = row.responses
        self.headroom_ref[i], self.headroom[i], self.drift[i] = row.headroom_ref, row.headroom, row.drift

    def remove(self, id: str) -> None:
        """Forget a group."""
        i = self._slot.pop(id)
        self.sequence[i] = -1
        self._ids[i] = ""
        self._free.append(i)

    def refresh(self, id: str, headroom: float, drift: float) -> None:
        """Cache a measurement; a group that has left meanwhile is ignored."""
        if (i := self._slot.get(id)) is not None:
            self.headroom[i], self.drift[i] = headroom, drift

    def count_use(self, id: str) -> None:
        """The group is replayed once more."""
        if (i := self._slot.get(id)) is not None:
            self.uses[i] += 1

    def slots(self) -> NDArray[np.intp]:
        """The occupied slots, in no particular order."""
        return np.flatnonzero(self.sequence[: self._size] >= 0)

    def oldest_first(self) -> NDArray[np.intp]:
        """The occupied slots by insertion."""
        slots = self.slots()
        return slots[np.argsort(self.sequence[slots])]

    def of_prompts(self, prompts: Collection[int]) -> NDArray[np.intp]:
        """The occupied slots of these questions' groups, by insertion."""
        slots = self.slots()
        slots = slots[np.isin(self.prompt[slots], np.fromiter(prompts, np.int64, len(prompts)))]
        return slots[np.argsort(self.sequence[slots])]

    def over_capacity(self, capacity: int) -> list[str]:
        """The oldest groups beyond `capacity`: what FIFO evicts."""
        return self.ids(self.oldest_first()[: max(0, len(self) - capacity)])

    def places(self, ids: Iterable[str]) -> list[int]:
        """The slots of these groups, all of which are stored."""
        return [self._slot[id] for id in ids]

    def prompts(self, ids: Iterable[str]) -> list[int]:
        """The questions of these groups, all of which are stored."""
        return self.prompt[self.places(ids)].tolist()

    def highest(self, score: NDArray[np.float64], n: int, *, newest_first: bool = False) -> NDArray[np.intp]:
        """The n occupied slots of highest score, descending; equal scores by insertion, oldest (or newest) first.

        A score of -inf leaves a group out. Only those that reach about the n-th score are sorted, so that a large
        buffer costs a few passes.
        """
        values = score[: self._size].astype(np.float64)  # a copy
        values[self._free] = -np.inf
        slots = np.flatnonzero(values >= _reached_by(values, n))
        slots = slots[values[slots] > -np.inf]
        sequence = self.sequence[slots]
        return slots[np.lexsort((-sequence if newest_first else sequence, -score[slots]))][:n]


def _reached_by(values: NDArray[np.float64], n: int) -> float:
    """A bound that at least n of the values reach, and as a rule few more: the n-th highest of maxima over parts.

    A part is every k-th value, so that neighbours, which were stored together, count in different ones. Partitioning
    all values takes longer, and many times longer where most of them are equal.
    """
    parts = len(values) // PART
    if n > parts // 2:
        return -np.inf if n >= len(values) else np.partition(values, len(values) - n)[len(values) - n]
    maxima = values[: PART * parts].reshape(PART, parts).max(axis=0)
    return np.partition(maxima, parts - n)[parts - n] if n else np.inf
