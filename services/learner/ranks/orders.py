"""What rank 0 has the others do beside it, and what each says afterwards. msgpack, as everything that travels."""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from services.learner.groups.group import Group
from services.learner.groups.reader import Fetched
from services.learner.model.batching import mini_batches
from services.learner.ranks.balance import Load
from services.learner.step import Trainer, train_step
from services.learner.totals import Totals
from shared.messages import Cursor, Part, Record
from shared.versions import Version


class Learn(msgspec.Struct, tag="learn"):
    """A batch; `owner`: the rank that has each group."""

    step: int
    replay: list[str]
    fresh: list[str]
    parts: dict[str, Part]
    owner: dict[str, int]


class Scan(msgspec.Struct, tag="scan"):
    """A scan."""

    step: int
    ids: list[str]
    per_rollout: bool
    owner: dict[str, int]


class Publish(msgspec.Struct, tag="publish"):
    """A version, and the sequences of its canary."""

    canary: list[list[int]]


class Save(msgspec.Struct, tag="save"):
    """A checkpoint."""

    version: Version
    cursor: Cursor | None


class Leave(msgspec.Struct, tag="leave"):
    """The run is over."""


Order = Learn | Scan | Publish | Save | Leave


class GroupSummary(msgspec.Struct):
    """Of a trained group what the learner tells of it: float32 and int32 bytes as in `groups.Group`."""

    id: str
    l_gen: bytes
    l_ref: bytes
    advantages: bytes
    versions: bytes
    canary: bytes


class Learned(msgspec.Struct):
    """One rank's part of a step."""

    records: list[Record]
    totals: Totals
    groups: list[GroupSummary]
    refused: dict[str, str]
    read: tuple[int, int, int]  # as `GroupReader.lap`


def learn(trainer: Trainer, order: Learn, replay: Fetched, fresh: Fetched) -> tuple[list[Record], Totals]:
    """This rank's part of a step, on the groups of it that it could fetch: every rank cuts the same mini-batches."""
    ranks, mine = trainer.ranks, {g.id: g for g in (*replay.groups, *fresh.groups)}
    lacking = msgspec.msgpack.encode([*replay.refused, *fresh.refused])
    gone = {id for part in ranks.all(lacking) for id in msgspec.msgpack.decode(part)}
    joins = {id: part.joins for id, part in order.parts.items()}
    loads = [Load(id, 0, joins.get(id, "")) for id in (*order.replay, *order.fresh) if id not in gone]
    cuts = mini_batches(loads, trainer.settings.mini_batch)
    batches = [[mine[load.id] for load in cut if load.id in mine] for cut in cuts]
    return train_step(trainer, order.step, replay.groups, fresh.groups, batches)


def own(ids: Sequence[str], order: Learn | Scan, rank: int) -> list[str]:
    """Those of the ids that are this rank's."""
    return [id for id in ids if order.owner[id] == rank]


def group_of(summary: GroupSummary) -> Group:
    """A group as far as another rank tells of it: without its rollouts."""
    l_gen = _floats(summary.l_gen)
    return Group(
        id=summary.id,
        rows=[],
        l_gen=l_gen,
        advantages=_floats(summary.advantages),
        rollout=torch.zeros(len(l_gen), dtype=torch.int64),
        version_runs=np.frombuffer(summary.versions, np.int32).reshape(-1, 3),
        canary_tokens=np.frombuffer(summary.canary, np.int32),
        numbers=[],
        l_ref=_floats(summary.l_ref),
    )


def summary_of(group: Group) -> GroupSummary:
    assert group.l_ref is not None
    floats = [t.numpy().astype(np.float32).tobytes() for t in (group.l_gen, group.l_ref, group.advantages)]
    ints = [np.ascontiguousarray(a, np.int32).tobytes() for a in (group.version_runs, group.canary_tokens)]
    return GroupSummary(group.id, *floats, *ints)


def _floats(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.float32).copy())
