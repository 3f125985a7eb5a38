"""Replay is killed at each of its writes in turn, or loses the reply: what is trained is what it would have been."""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from services.replay.service import Replay
from services.replay.state import Store
from shared import messages, streams
from shared.cancellation import stop
from shared.config import Config
from shared.messages import Batch, Record, Task
from shared.streams import Keys
from shared.versions import Version
from tests.crashing import Death, Killed, deaths, first_and_last, mortal
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of, header_for

STEPS, BATCH = 4, 2
OF_TIME = ("started", "duplicates")


class SeededActor(PeerActor):
    """A group is decided by its task alone, however often it is asked for."""

    async def _answer(self, entry: streams.Entry) -> None:
        task = messages.decode(entry.data, Task)
        header = header_for(task, random.Random(task.seed), Version(0, task.min_version))
        payload = b"" if task.kind == messages.EVAL else b"p" * header.payload_bytes
        await self.store.store(task.id, messages.encode(header), payload, entry.id)


class SeededLearner(PeerLearner):
    """A measurement is decided by the group and the step."""

    def record(self, id: str) -> Record:
        self.rng = random.Random(f"{id} at {len(self.trained)}")
        return super().record(id)


class Life:
    """One run with one death in it."""

    def __init__(self, config: Config, death: Death) -> None:
        self.config, self.death, self.keys = config, death, Keys(config.run.name)
        self.client = client_of(config.redis.url)
        self.learner = SeededLearner(config.redis.url, config, every=2)
        self.actor = SeededActor(config.redis.url, config, seed=0)

    async def trains(self) -> tuple[list[Batch], dict[str, Any], list[bytes]]:
        """What was trained, in order; the counts at the end; the payloads that are left."""
        replay = self._start(mortal(client_of(self.config.redis.url), self.death))
        others = [asyncio.create_task(self.learner.run()), asyncio.create_task(self.actor.run())]
        async with asyncio.timeout(60):
            while not (self.learner.finished and await self._quiet()):
                if replay.done():
                    assert isinstance(_leaf(replay.exception()), Killed)
                    replay = self._start(client_of(self.config.redis.url))
                await asyncio.sleep(0.01)
        await stop(replay, *others)
        state = await Store(self.client, self.keys).load(now=0.0)
        counters = {k: v for k, v in msgspec.to_builtins(state.counters).items() if k not in OF_TIME}
        left: Any = await self.client.keys(self.keys.payload("*"))
        assert not state.tasks and not state.fresh and not await self.client.xlen(self.keys.dead)
        return [batch for _, batch in self.learner.trained], counters, sorted(k.rpartition(b":")[2] for k in left)

    def _start(self, client: Any) -> asyncio.Task[None]:
        service = Replay(self.config, client, Questions(20), Questions(1), CollectorRegistry())
        return asyncio.create_task(service.run())

    async def _quiet(self) -> bool:
        """Whether replay has read all that was said to it."""
        return not any([await self.client.xlen(stream) for stream in (self.keys.groups, self.keys.results)])


def _leaf(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["killed", "reply_lost"])
async def test_with_groups_of_later_steps_here_nothing_is_lost_and_nothing_is_done_twice(
    make_config, monkeypatch, lost
):
    """At max_lag 1: the same kinds of writes as at 0, in states that differ, so each is struck twice and not always."""
    monkeypatch.setattr("services.replay.service.RETRY_S", 0.01)

    def life(death: Death) -> Life:
        replay = {"max_lag": 1, "select": 1, "capacity": 3, "scan_chunk": 1}
        made = Life(make_config(run={"steps": STEPS}, learner={"batch": BATCH}, replay=replay), death)
        made.actor.slots = 1  # groups arrive in the order of their tasks, so that steps take the same ones
        return made

    unharmed = Death(0)
    batches, counters, left = await life(unharmed).trains()
    taken = [id for batch in batches for id in batch.fresh]
    assert len(taken) == len(set(taken)) == STEPS * BATCH and any(batch.replay for batch in batches)
    for at in first_and_last(unharmed.writes):
        death = Death(at, lost=lost)
        assert await life(death).trains() == (batches, counters, left), f"{death.at}: {death.where}"


# with policies that refill, ask again, keep prompts and draw, so that those writes and the draws are struck too
DEATHS = [("headroom_drift", False), ("headroom_drift", True)]
DEATHS += [(policy, False) for policy in ("dapo", "exgrpo", "bapo", "rollout_advantage", "uniform")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "lost"), DEATHS, ids=lambda v: v if isinstance(v, str) else ["killed", "reply_lost"][v]
)
async def test_at_every_write_nothing_is_lost_and_nothing_is_done_twice(make_config, monkeypatch, policy, lost):
    monkeypatch.setattr("services.replay.service.RETRY_S", 0.01)

    def config() -> Config:
        return make_config(
            run={"steps": STEPS},
            learner={"batch": BATCH},
            replay={"policy": policy, "max_lag": 0, "select": 1, "capacity": 3, "scan_chunk": 1},
        )

    batches, counters, left = await Life(config(), Death(0)).trains()
    assert [batch.step for batch in batches] == list(range(STEPS)) and not counters["lost"]
    if policy in ("headroom_drift", "uniform"):
        assert any(batch.replay for batch in batches) and counters["evicted"]
    kinds: set[str] = set()
    for death in deaths(lost=lost):
        assert await Life(config(), death).trains() == (batches, counters, left), f"{death.at}: {death.where}"
        kinds.add(death.where)
    assert any("XADD" in kind and "HSET" in kind and "XACK" in kind for kind in kinds), kinds
