"""A rank that does not lead: one order after the other, until it may leave."""

import msgspec

from services.learner import assemble
from services.learner.drift_noise import is_due
from services.learner.groups.reader import Fetched
from services.learner.model.policy import pick_device
from services.learner.ranks import orders
from services.learner.ranks.keeping import save_checkpoint
from services.learner.ranks.members import join
from services.learner.ranks.sharded import trains_shards
from services.learner.step import scan
from services.learner.stop import Stop
from services.learner.talk.patience import patiently
from services.learner.weights import version_files
from services.learner.weights.canary import canary_of, sampled_sequences
from services.learner.weights.publisher import how_many
from shared.config import Config
from shared.redis_client import connect


def follow(config: Config) -> None:
    """Until rank 0 says that the run is over."""
    ranks, stop = join(pick_device(config.learner.device)), Stop()
    trainer = assemble.assemble(config, stop, ranks).trainer
    model, reader = trainer.model, assemble.reader(config, connect(config.redis.url), trainer)
    sampled_sequences(model, *how_many(config.weights))  # beside rank 0's publisher

    def own(ids: list[str], order: orders.Learn | orders.Scan, *, reference: bool) -> Fetched:
        wanted = orders.own(ids, order, ranks.rank)
        parts = order.parts if isinstance(order, orders.Learn) else None
        return patiently(stop, "fetch groups", lambda: reader.fetch(wanted, reference=reference, parts=parts))

    reference = config.learner.reference == "trainer"
    while True:
        order = msgspec.msgpack.decode(ranks.tell(), type=orders.Order)
        match order:
            case orders.Learn():
                replay = own(order.replay, order, reference=reference)
                fresh = own(order.fresh, order, reference=False)
                records, totals = orders.learn(trainer, order, replay, fresh)
                told = [orders.summary_of(g) for g in (*replay.groups, *fresh.groups)]
                refused = replay.refused | fresh.refused
                ranks.all(msgspec.msgpack.encode(orders.Learned(records, totals, told, refused, reader.lap())))
            case orders.Scan():
                groups = own(order.ids, order, reference=reference).groups
                ranks.all(msgspec.msgpack.encode(scan(trainer, groups, order.per_rollout, is_due(order.step))))
            case orders.Publish():
                canary_of(model, order.canary)
                if trains_shards(model):  # otherwise rank 0 has all there is to write
                    version_files.write_model(model, {}, config.weights_dir)
            case orders.Save():
                save_checkpoint(config.checkpoints_dir, trainer, {}, order.version, order.cursor)
            case orders.Leave():
                return
