"""A group that no honest actor makes never reaches the learner: refused, kept with a reason, its task done again."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from services.replay import service
from services.replay.service import Replay
from shared import messages, streams
from shared.cancellation import stop
from shared.messages import Task
from shared.streams import Keys
from shared.versions import Version
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of, header_for


def field(name: str, value: Any) -> Callable[[dict], bytes]:
    """The header with one field changed."""
    return lambda header: msgspec.msgpack.encode(header | {name: value})


# kind: (what is sent in place of the header, a piece of the reason that is kept)
POISON: dict[str, tuple[Callable[[dict], bytes], str]] = {
    "a NaN reward": (field("rewards", [float("nan"), 1.0, 0.0]), "not finite"),
    "an infinite Headroom": (field("headroom", float("inf")), "not finite"),
    "a reward of 1e300": (field("rewards", [1e300, 1.0, 0.0]), "no rollout gives"),
    "a negative length": (field("total_tokens", [-9, 9, 9]), "negative"),
    "more sampled than there is": (field("sampled_tokens", [7, 7, 10]), "more sampled tokens"),
    "2 GB claimed": (field("payload_bytes", 2**31), "larger than any group"),
    "2**63 bytes claimed": (field("payload_bytes", 2**63), "larger than any group"),
    "tokens beyond 32 bits": (field("total_tokens", [2**31 - 1] * 3), "larger than any group"),
    "2 GB of bytes announced": (lambda header: b"\xc6\x7f\xff\xff\xff", "not a valid message"),
    "4e9 items announced": (lambda header: b"\xdd\xff\xff\xff\xff", "not a valid message"),
    "nested 100,000 deep": (lambda header: b"\x91" * 100_000, "not a valid message"),
    "another schema": (field("schema", 99), "schema 99"),
    "an unknown field": (field("extra", 1), "not a valid message"),
    "another kind of message": (lambda header: messages.encode(messages.Finish()), "not a valid message"),
    "another task's number": (field("number", 41), "of another task"),
    "an attempt to come": (field("attempt", 7), "of another task"),
    "too many rollouts": (
        lambda header: msgspec.msgpack.encode(header | {n: v * 2 for n, v in header.items() if isinstance(v, list)}),
        "version",
    ),
    "rollouts that do not match": (field("correct", [True]), "correct for 3 rewards"),
    "nothing": (lambda header: b"", "not a valid message"),
}


class PoisonedActor(PeerActor):
    """Sends one kind of poison for each of its first tasks, and honest groups afterwards."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kinds = list(POISON)
        self.poisoned: dict[str, str] = {}  # task: kind

    async def _answer(self, entry: streams.Entry) -> None:
        task = messages.decode(entry.data, Task)
        if not self.kinds or task.attempt:
            await super()._answer(entry)
            return
        kind = self.kinds.pop()
        self.poisoned[task.id] = kind
        honest = msgspec.to_builtins(header_for(task, random.Random(0), Version(0, task.min_version)))
        await self.store.store(task.id, POISON[kind][0](honest), b"poison", entry.id)


async def test_no_kind_of_poison_reaches_the_learner_and_no_task_is_lost_to_it(make_config, monkeypatch):
    monkeypatch.setattr(service, "WATCH_S", 0.2)
    config = make_config(run={"steps": 8}, replay={"policy": "headroom_drift", "select": 2, "tau": 0.01, "max_lag": 4})
    url, keys, client = config.redis.url, Keys(config.run.name), client_of(config.redis.url)
    replay = Replay(config, client, Questions(50), None, CollectorRegistry())
    learner, actor = PeerLearner(url, config), PoisonedActor(url, config, 0)
    jobs = [asyncio.create_task(job) for job in (replay.run(), learner.run())]
    await asyncio.sleep(0.05)
    await client.xadd(keys.groups, {b"strange": b"field"})  # a stranger's entry
    jobs.append(asyncio.create_task(actor.run()))
    try:
        await learner.until_finished(within_s=120)
        assert not any(job.done() and job.exception() for job in jobs)
    finally:
        await stop(*jobs)
    assert set(actor.poisoned.values()) == set(POISON)
    letters: Any = await client.xrange(keys.dead)
    reasons = [fields[b"reason"].decode() for _, fields in letters]
    assert len(reasons) == len(POISON) + 1
    for kind, (_, reason) in POISON.items():
        assert any(reason in given for given in reasons), f"{kind}: {reasons}"
    trained = {id for _, batch in learner.trained for id in batch.fresh}
    assert set(actor.poisoned) <= trained, "their tasks were done again"
    assert trained <= set(actor.headers), "only what the actor sent honestly was trained"
    assert len(trained) == 8 * config.learner.batch
    for id in trained & set(actor.poisoned):
        assert actor.headers[id].attempt >= 1
    left: Any = await client.get(keys.payload(next(iter(actor.poisoned))))
    assert left != b"poison"
