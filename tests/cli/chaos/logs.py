"""Logs of real services for the checker to judge, and faults that are planted in them."""

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import redis

from cli.chaos.aof import AppendOnlyFile
from cli.chaos.checker import check
from cli.chaos.log import Added, Fact, facts
from cli.run import local_redis
from cli.run.local_redis import LocalRedis
from shared.cancellation import stop
from shared.config import Config, build
from shared.messages import Batch, Checkpointed, Record
from shared.redis_client import wait_until_up
from shared.streams import FIELD, Keys
from tests.replay.peers import PeerActor, PeerLearner, Questions
from tests.replay.test_service import new_replay

Log = list[list[Fact]]
CAPACITY, TAU = 10, 0.01


def settings(url: str = "", **replay: object) -> Config:
    """A run of 14 steps with replay, failures, and a group size that mixes outcomes."""
    tree: dict[str, Any] = {
        "run": {"name": "judged", "steps": 14},
        "redis": {"url": url},
        "learner": {"batch": 4},
        "replay": {"select": 2, "tau": TAU, "capacity": CAPACITY, "max_lag": 1, "scan_chunk": 3, "max_attempts": 9},
        "rollout": {"group_size": 3},
    }
    tree["replay"] |= replay
    return build(tree)


def made(
    folder: Path, fail_share: float = 0.1, questions: int = 0, unreadable: Sequence[str] = (), **replay: object
) -> Path:
    """Run replay with its peers, both crashing, on a server that keeps its history; the server's folder.

    questions: that each of the two evaluations asks. unreadable: streams whose first message is not one.
    """
    server = local_redis.prepare(folder, 0, keep_history=True)
    process = started(server)
    try:
        with redis.Redis.from_url(server.url) as client:
            for stream in unreadable:
                client.xadd(Keys("judged").prefix + stream, {FIELD: b"\xc1"})
        asyncio.run(train(settings(server.url, **replay), fail_share, questions))
    finally:
        process.terminate()  # killed while its disk is busy it would lose the end of the log
        process.wait()
    return server.folder


def started(server: LocalRedis) -> subprocess.Popen[bytes]:
    """The server, once it answers."""
    process = subprocess.Popen(server.command, stdout=subprocess.DEVNULL)
    wait_until_up(server.url, 20)
    return process


async def train(config: Config, fail_share: float, questions: int) -> None:
    """Replay with its peers to the end of the run; replay and learner die in turn when so many steps are trained."""
    learner, url = PeerLearner(config.redis.url, config), config.redis.url
    held_out = Questions(questions) if questions else None
    acting = [asyncio.create_task(PeerActor(url, config, seed, fail_share).run()) for seed in (1, 2)]
    serving, learning = asyncio.create_task(new_replay(config, held_out).run()), asyncio.create_task(learner.run())
    try:
        for steps in (2, 4, 7, 10, 12):
            await trained(learner, steps)
            await stop(serving if steps % 3 == 1 else learning)
            if serving.done():
                serving = asyncio.create_task(new_replay(config, held_out).run())
            if learning.done():
                learning = asyncio.create_task(learner.run())
        await learner.until_finished(60)
    finally:
        await stop(serving, learning, *acting)


async def trained(learner: PeerLearner, steps: int) -> None:
    """Wait until it has trained so many. Raises TimeoutError."""
    async with asyncio.timeout(60):
        while len(learner.trained) < steps:
            await asyncio.sleep(0.005)


def made_by_a_server_that_lost_writes(folder: Path, *, learner_too: bool = False, **replay: object) -> Path:
    """The same without other crashes, on a server that dies when 7 steps are trained and forgets all from the third on.

    The learner lives through it. learner_too: the server forgets the last step that was trained and what came behind
    it, and the learner dies, which has a checkpoint of that step. Many attempts fail until then.
    """
    server = local_redis.prepare(folder, 0, keep_history=True)
    asyncio.run(_train_through_the_loss(server, settings(server.url, **replay), learner_too))
    return server.folder


class SlowLearner(PeerLearner):
    """Groups come while it trains."""

    async def train(self, batch: Batch) -> list[Record]:
        await asyncio.sleep(0.03)
        return await super().train(batch)


async def _train_through_the_loss(server: LocalRedis, config: Config, learner_too: bool) -> None:
    process, learner = started(server), SlowLearner(config.redis.url, config, every=1 if learner_too else 3)

    def actors(fail_share: float) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(PeerActor(config.redis.url, config, seed, fail_share).run()) for seed in (1, 2)]

    running = [asyncio.create_task(new_replay(config).run()), asyncio.create_task(learner.run()), *actors(0.6)]
    try:
        await trained(learner, 3)
        await stop(*running[2:])
        await asyncio.sleep(0.1)  # so that tasks are open
        kept = log_file(server.folder).read_bytes()
        running[2:] = actors(0.6)
        await trained(learner, 7)
        await stop(*running)
        await learner.client.connection_pool.disconnect()
        process.kill()
        process.wait()
        if learner_too:
            kept = _before_the_last_step(log_file(server.folder).read_bytes())
        log_file(server.folder).write_bytes(kept)
        process = started(server)
        life = _resume(learner) if learner_too else _go_on(learner)
        running = [asyncio.create_task(new_replay(config).run()), asyncio.create_task(life), *actors(0.1)]
        await learner.until_finished(60)
    finally:
        await stop(*running)
        process.terminate()
        process.wait()


def _before_the_last_step(log: bytes) -> bytes:
    """Up to the transaction in which the learner said that it had trained it."""
    said = log.rindex(b"\xa7trained")  # as msgpack has the kind of the message
    return log[: log.rindex(b"*1\r\n$5\r\nMULTI\r\n", 0, said)]


async def _resume(learner: PeerLearner) -> None:
    """A new life, which tells of the checkpoint that it is from."""
    await learner.begin()
    await learner._say(Checkpointed(version=learner.version, step=learner.saved))
    await _go_on(learner)


async def _go_on(learner: PeerLearner) -> None:
    """The life that it has."""
    while not learner.finished:
        for entry in await learner.inbox.read(8, block_ms=50):
            await learner.handle(entry)


def log_file(folder: Path) -> Path:
    """The append-only file in a server's folder."""
    return next((folder / "appendonlydir").glob("*.incr.aof"))


def read(folder: Path) -> Log:
    """The log in a server's folder."""
    return list(facts(AppendOnlyFile(folder).transactions(), "judged"))


def planted(log: Log, change: Callable[[Fact], Fact | list[Fact] | None]) -> Log:
    """The log with each fact put through `change`: another, several, or None for none."""
    out: Log = []
    for transaction in log:
        changed = [change(fact) for fact in transaction]
        out.append([f for c in changed for f in (c if isinstance(c, list) else [] if c is None else [c])])
    return out


def first(log: Log, wanted: Callable[[Fact], bool]) -> Any:
    """The first such fact."""
    return next(fact for transaction in log for fact in transaction if wanted(fact))


def message(fact: Fact, kind: type) -> Any:
    """Its message where it is an addition of this kind."""
    return fact.message if isinstance(fact, Added) and isinstance(fact.message, kind) else None


def all_of(log: Log, kind: type) -> list[Any]:
    """The additions of this kind."""
    return [fact for transaction in log for fact in transaction if message(fact, kind)]


def edited(fact: Any, **fields: object) -> Fact:
    """An addition with other fields in its message."""
    return replace(fact, message=msgspec.structs.replace(fact.message, **fields))


def refused(log: Log, *words: str, config: Config | None = None) -> None:
    """The verdict has a sentence with all these words."""
    broken = check(config or settings(), log).broken
    assert any(all(word in sentence for word in words) for sentence in broken), broken[:5]
