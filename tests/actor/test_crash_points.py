"""An actor is killed at each of its writes in turn, or loses a reply: every task ends as the one group it would be."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import redis

from services.actor import wire
from services.actor.engines.engine import Finish, Sampling
from services.actor.service import Actor
from shared import streams
from shared.cancellation import stop
from shared.config import Config
from shared.messages import GroupHeader, WeightsNotice, decode, encode
from shared.payload import decode_payload, encode_payload
from shared.redis_client import connect_async
from shared.streams import FIELD
from shared.versions import Version
from tests.actor.running import KEYS, make_task, send
from tests.actor.scripted_engine import ScriptedEngine
from tests.crashing import Death, Killed, deaths, first_and_last, mortal
from tests.tiny_model import END, SPECIALS, TAGS

OPEN, CLOSE = (len(SPECIALS) + TAGS.index(tag) for tag in ("<answer>", "</answer>"))
A = len(SPECIALS) + len(TAGS)  # the letters' first token
TASKS = 3
TRIES = 20


def say(ids: list[int], sampling: Sampling) -> tuple[list[int], Finish]:
    """An answer that the seed decides."""
    return [OPEN, A + random.Random(sampling.seed).randrange(6), CLOSE, END], "eos"


class Life:
    """Three tasks, one that is too long to be played and one that nobody can read, for one actor after another.

    At max_lag 1 the last of the three is of the next version, which is there once a group is.
    """

    def __init__(self, config: Config, client: Any, death: Death) -> None:
        self.config, self.client, self.death = config, client, death
        self.lag = config.replay.max_lag
        client.flushall()
        (config.weights_dir / "v").mkdir(parents=True, exist_ok=True)
        self.announce(0)
        send(client, *(make_task(i, min_version=self.lag * (i == TASKS - 1)) for i in range(TASKS)))
        send(client, make_task(TASKS, messages=[{"role": "user", "content": "a " * 80}]))
        streams.add(client, KEYS.tasks, b"\x81garbage")

    def announce(self, number: int) -> None:
        notice = WeightsNotice(version=Version(0, number), location="v", digest="", size=0, published=0.0, canary=[])
        streams.add(self.client, KEYS.weights, encode(notice))

    async def answers(self, patch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What replay and the learner find: headers without names and times, payloads, what was buried."""
        patch.setattr(wire, "connect_async", lambda url: mortal(connect_async(url), self.death))
        actor, dies = self._start(), True
        async with asyncio.timeout(30):
            while self.client.xlen(KEYS.groups) <= TASKS or self.client.xlen(KEYS.tasks):
                await asyncio.sleep(0.01)
                if self.lag and self.client.xlen(KEYS.groups) and self.client.xlen(KEYS.weights) == 1:
                    self.announce(1)
                if self.death.dead and dies:
                    await self._gone(actor)
                    patch.setattr(wire, "connect_async", connect_async)
                    actor, dies = self._start(), False
        await self._gone(actor)
        entries = [decode(fields[FIELD], GroupHeader) for _, fields in self.client.xrange(KEYS.groups)]
        usable = {h.id: h for h in entries if h.usable}
        assert len(usable) == sum(h.usable for h in entries), "one header for each payload"
        payloads = {id: self.client.get(KEYS.payload(id)) for id in sorted(usable)}
        if self.lag:  # which tokens are of the next version is a matter of moments
            assert all(usable[f"t{i}"].version_min >= Version(0, i == TASKS - 1) for i in range(TASKS))
            payloads = {id: _without_versions(data) for id, data in payloads.items()}
            same = {"version_min": Version(0, 0), "version_max": Version(0, 0), "payload_bytes": 0}
            entries = [msgspec.structs.replace(h, **same) for h in entries]
        return {
            "headers": {h.id: msgspec.structs.replace(h, actor="", seconds=0.0, env_seconds=0.0) for h in entries},
            "payloads": payloads,
            "buried": {fields[b"data"] for _, fields in self.client.xrange(KEYS.dead)},
        }

    def _start(self) -> tuple[Actor, asyncio.Task[None]]:
        engine = ScriptedEngine(say)
        engine.version = None
        actor = Actor(self.config, engine)
        return actor, asyncio.create_task(actor.run())

    async def _gone(self, running: tuple[Actor, asyncio.Task[None]]) -> None:
        """All of it ends as a killed process does: at once, and without a word to Redis."""
        actor, task = running
        await stop(task, *actor.tasks.running.values())
        assert task.cancelled() or isinstance(task.exception(), Killed)
        await actor.wire.client.aclose()


def _without_versions(data: bytes) -> bytes:
    payload = decode_payload(data, "test")
    return encode_payload(replace(payload, version_runs=np.array([[len(payload.l_gen), 0, 0]], np.int32)))


def each_write(*, lost: bool) -> Iterator[Death]:
    """At 1, 2, 3, ..., and then at what was missed because it changed places: rollouts end beside one another."""
    died: set[str] = set()
    writes: list[str] = []  # of the last life
    for death in deaths(lost=lost):
        yield death
        died.add(death.where)
        writes = death.writes
    for _ in range(TRIES):
        if missed := [at for at, write in enumerate(writes, start=1) if write not in died]:
            yield (death := Death(missed[0], lost=lost))
            died.add(death.where)
            writes = death.writes


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("lost", [False, True], ids=["killed", "reply_lost"])
async def test_at_every_write_each_task_is_answered_by_the_group_it_would_be(
    make_config: Any, client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, lost: bool, lag: int
) -> None:
    monkeypatch.setattr("services.actor.tasks.RECLAIM_MS", 100)
    monkeypatch.setattr("services.actor.outage._PAUSE_S", 0.01)
    sections = {"redis": {"url": redis_url}, "env": {"kind": "single"}, "replay": {"max_lag": lag}}
    config = make_config(**sections, actor={"heartbeat_s": 0.5})
    whole = Death(0)
    unharmed = await Life(config, client, whole).answers(monkeypatch)
    assert sorted(unharmed["headers"]) == [f"t{i}" for i in range(TASKS + 1)]
    assert len(unharmed["payloads"]) == TASKS and len(unharmed["buried"]) == 1
    kinds: set[str] = set()
    some = [Death(at, lost=lost) for at in first_and_last(whole.writes)]
    for death in some if lag else each_write(lost=lost):
        assert await Life(config, client, death).answers(monkeypatch) == unharmed, f"{death.at}: {death.where}"
        kinds |= set(death.where.split())
    assert kinds >= {"EVAL", "MULTI", "XACK", "XDEL", "XADD", "SET", "XGROUP"}, kinds
