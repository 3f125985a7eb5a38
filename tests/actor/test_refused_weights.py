"""An actor whose engine refuses the newest weights leaves the tasks that ask for them to others."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from services.actor import tasks
from services.actor.engines.engine import CanaryRefused
from services.actor.service import serve
from shared.cancellation import stop
from shared.config import Config
from shared.messages import WeightsNotice, encode
from shared.streams import ACTORS, SyncInbox, add
from shared.versions import Version
from tests.actor.running import KEYS, heartbeats, make_task, send
from tests.actor.scripted_engine import ScriptedEngine

FIRST, SECOND = Version(0, 0), Version(0, 1)


class Doubtful(ScriptedEngine):
    """Refuses the second version the first time it is announced."""

    doubts = True

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        if notice.version == SECOND and self.doubts:
            self.doubts = False
            raise CanaryRefused("the canary is off")
        return await super().swap(notice, directory)


@pytest.mark.slow
async def test_a_refused_actor_reads_no_tasks_above_its_version_until_it_takes_one(
    client: redis.Redis, make_config: Callable[..., Config], redis_url: str
) -> None:
    config = make_config(redis={"url": redis_url}, env={"kind": "single"}, actor={"engine": "torch", "groups": 2})
    engine = Doubtful(lambda ids, sampling: ([14, 4], "eos"))
    engine.version = None
    actor = asyncio.create_task(serve(config, engine))

    def announce(version: Version) -> None:
        (config.weights_dir / version.directory).mkdir(parents=True, exist_ok=True)
        notice = WeightsNotice(version=version, location=version.directory, digest="", size=0, published=0, canary=[])
        add(client, KEYS.weights, encode(notice))

    async def until(what: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not what():
                await asyncio.sleep(0.02)

    announce(FIRST)
    await until(lambda: any(beat["version"] == list(FIRST) for beat in heartbeats(client)))
    announce(SECOND)
    await until(lambda: any(beat["refused"] == list(SECOND) for beat in heartbeats(client)))
    send(client, *(make_task(i, min_version=1) for i in range(6)))
    await until(lambda: len(client.xpending_range(KEYS.tasks, ACTORS, "-", "+", 9, idle=tasks.RECLAIM_MS)) == 2)
    other = SyncInbox(client, KEYS.tasks, ACTORS, "other")
    assert len(other.read(9, 1)) == 4, "it has read as many as it has room for, once, and left the rest to others"
    send(client, make_task(6, min_version=1))
    await asyncio.sleep(1.2)
    assert len(other.read(9, 1)) == 1, "nor does it look for more"
    announce(SECOND)
    began = time.monotonic()
    await until(lambda: client.xlen(KEYS.groups) >= 2)
    assert time.monotonic() - began < tasks.RECLAIM_MS / 1000, "its own come back to it at its next look"
    assert [beat["refused"] for beat in heartbeats(client)] == [None]
    await stop(actor)
