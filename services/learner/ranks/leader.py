"""Several ranks hold the model: rank 0 speaks to Redis' streams, the others work beside it.

    rank 0     the loop; in front of everything for which layers must run on all ranks at once, an order (`orders.py`)
    others     `follower.py`: fetch payloads of their own groups, train, scan, write their shards

A signal stops rank 0 at its next safe point; whoever started the ranks ends the others.
"""

import msgspec

from services.learner import step as steps
from services.learner.drift_noise import is_due
from services.learner.executor import Alone, Learned
from services.learner.groups.reader import Fetched
from services.learner.ranks import orders
from services.learner.ranks.balance import Load, owners
from services.learner.ranks.sharded import meeting_all
from services.learner.totals import added
from shared.messages import Batch, Cursor, Record, Scan
from shared.versions import Version


class WithRanks:
    """An executor: rank 0 of several. `own`: what it does of each order itself."""

    may_save = False  # the others may be anywhere

    def __init__(self, own: Alone) -> None:
        self._own, self._ranks = own, own.trainer.ranks

    def learn(self, batch: Batch) -> Learned:
        own = self._own
        owner = self._owners([*batch.replay, *batch.fresh], {id: p.joins for id, p in batch.parts.items()})
        order = orders.Learn(batch.step, batch.replay, batch.fresh, batch.parts, owner)
        self._order(order)
        with own.trainer.clock("fetch"):
            replay = own.fetch(orders.own(batch.replay, order, 0), reference=own.reference, parts=batch.parts)
            fresh = own.fetch(orders.own(batch.fresh, order, 0), reference=False, parts=batch.parts)
        records, totals = orders.learn(own.trainer, order, replay, fresh)
        told = orders.Learned(records, totals, [], {}, (0, 0, 0))
        parts = [msgspec.msgpack.decode(p, type=orders.Learned) for p in self._ranks.all(msgspec.msgpack.encode(told))]

        groups = {g.id: g for g in (*replay.groups, *fresh.groups)}
        groups |= {told.id: orders.group_of(told) for part in parts for told in part.groups}
        refused = replay.refused | fresh.refused
        for part in parts:
            refused |= part.refused
            own.reader.read_elsewhere(*part.read)
        by_id = {r.id: r for part in parts for r in part.records}

        def of(ids: list[str]) -> Fetched:
            there = [groups[id] for id in dict.fromkeys(ids) if id in groups]
            return Fetched(there, {id: refused[id] for id in ids if id in refused})

        replay, fresh = of(batch.replay), of(batch.fresh)
        in_order = [by_id[g.id] for g in (*replay.groups, *fresh.groups)]
        return Learned(replay, fresh, in_order, added([part.totals for part in parts]))

    def scan(self, scan: Scan) -> list[Record]:
        own, order = self._own, orders.Scan(scan.step, scan.ids, scan.per_rollout, self._owners(scan.ids, {}))
        self._order(order)
        groups = own.fetch(orders.own(scan.ids, order, 0), reference=own.reference).groups
        records = steps.scan(own.trainer, groups, scan.per_rollout, is_due(scan.step))
        parts = self._ranks.all(msgspec.msgpack.encode(records))
        by_id = {r.id: r for part in parts for r in msgspec.msgpack.decode(part, type=list[Record])}
        return [by_id[id] for id in scan.ids if id in by_id]

    def publish(self, version: Version) -> None:
        self._order(orders.Publish(self._own.publisher.canary))
        with meeting_all(self._own.trainer.model):
            self._own.publish(version)

    def save(self, version: Version, cursor: Cursor | None) -> None:
        self._order(orders.Save(version, cursor))
        self._own.save(version, cursor)

    def leave(self) -> None:
        self._order(orders.Leave())

    def _order(self, order: orders.Order) -> None:
        self._ranks.tell(msgspec.msgpack.encode(order))

    def _owners(self, ids: list[str], joins: dict[str, str]) -> dict[str, int]:
        """By the sizes of the payloads, which are not read for it."""
        outbox = self._own.outbox

        def sizes() -> list[int]:
            with outbox.client.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.strlen(outbox.keys.payload(id))
                return pipe.execute()

        found = outbox.patiently("look how large groups are", sizes) if ids else []
        loads = [Load(id, size, joins.get(id, "")) for id, size in zip(ids, found, strict=True)]
        return owners(loads, self._own.config.learner.mini_batch, self._ranks.count)
