"""The learner's loop where several ranks hold the model: rank 0 speaks to Redis' streams, the others work beside it.

    rank 0     Loop, and an order (`orders.py`) in front of everything for which layers must run on all ranks at once
    others     `orders.follow`: fetch payloads of their own groups, train, scan, write their shards

A signal stops rank 0 at its next safe point; whoever started the ranks ends the others.
"""

import msgspec

from services.learner import step as steps
from services.learner.groups.parts import use_parts
from services.learner.groups.store import Fetched
from services.learner.loop import Loop
from services.learner.ranks import orders
from services.learner.ranks.balance import Load, owners
from services.learner.step import Totals
from shared.messages import Batch, Record, Scan


class Leader(Loop):
    """Rank 0 of several."""

    def run(self) -> None:
        """As a loop alone; at the end the others may leave."""
        super().run()
        self._order(orders.Leave())

    def _order(self, order: orders.Order) -> None:
        self.trainer.ranks.tell(msgspec.msgpack.encode(order))

    def _may_be_saved(self) -> bool:
        return False  # the others may be anywhere

    def _learned(self, batch: Batch) -> tuple[Fetched, Fetched, list[Record], Totals]:
        ranks, reference = self.trainer.ranks, self._needs_reference
        owner = self._owners([*batch.replay, *batch.fresh], {id: p.joins for id, p in batch.parts.items()})
        order = orders.Learn(batch.step, batch.replay, batch.fresh, batch.parts, owner)
        self._order(order)
        with self.trainer.clock("fetch"):
            replay = use_parts(self._fetch(orders.own(batch.replay, order, 0), reference=reference), batch.parts)
            fresh = use_parts(self._fetch(orders.own(batch.fresh, order, 0), reference=False), batch.parts)
        records, totals = orders.learn(self.trainer, order, replay, fresh)
        own = orders.Learned(records, totals, [], {}, (0, 0))
        parts = [msgspec.msgpack.decode(p, type=orders.Learned) for p in ranks.all(msgspec.msgpack.encode(own))]

        groups = {g.id: g for g in (*replay.groups, *fresh.groups)}
        groups |= {told.id: orders.group_of(told) for part in parts for told in part.groups}
        refused = replay.refused | fresh.refused
        for part in parts:
            refused |= part.refused
            self.store.read_elsewhere(*part.read)
        by_id = {r.id: r for part in parts for r in part.records}

        def of(ids: list[str]) -> Fetched:
            there = [groups[id] for id in dict.fromkeys(ids) if id in groups]
            return Fetched(there, {id: refused[id] for id in ids if id in refused})

        replay, fresh = of(batch.replay), of(batch.fresh)
        in_order = [by_id[g.id] for g in (*replay.groups, *fresh.groups)]
        return replay, fresh, in_order, orders.added([part.totals for part in parts])

    def _scanned(self, scan: Scan) -> list[Record]:
        order = orders.Look(scan.ids, scan.per_rollout, self._owners(scan.ids, {}))
        self._order(order)
        groups = self._fetch(orders.own(scan.ids, order, 0), reference=self._needs_reference).groups
        own = steps.scan(self.trainer, groups, scan.per_rollout)
        parts = self.trainer.ranks.all(msgspec.msgpack.encode(own))
        by_id = {r.id: r for part in parts for r in msgspec.msgpack.decode(part, type=list[Record])}
        return [by_id[id] for id in scan.ids if id in by_id]

    def _owners(self, ids: list[str], joins: dict[str, str]) -> dict[str, int]:
        """By the sizes of the payloads, which are not read for it."""

        def sizes() -> list[int]:
            with self.client.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.strlen(self.keys.payload(id))
                return pipe.execute()

        found = self.post.patiently("look how large groups are", sizes) if ids else []
        loads = [Load(id, size, joins.get(id, "")) for id, size in zip(ids, found, strict=True)]
        return owners(loads, self.config.learner.mini_batch, self.trainer.ranks.count)

    def _publish_once(self) -> None:
        self._order(orders.Publish(self._publisher.canary))
        super()._publish_once()

    def _save(self) -> None:
        self._order(orders.Save(self.step, self.lineage, self._cursor))
        super()._save()
