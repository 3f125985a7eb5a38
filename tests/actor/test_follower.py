"""Following the published weights, over a real Redis."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from services.actor import follower as module
from services.actor import metrics
from services.actor.engines.engine import CanaryRefused, EngineFailed
from services.actor.follower import Follower
from services.actor.wire import Wire
from shared import events, streams
from shared.cancellation import stop
from shared.config import build
from shared.messages import WeightsNotice, encode
from shared.versions import Version
from shared.waiting import LongWait
from tests.actor.scripted_engine import ScriptedEngine


@pytest.mark.slow
async def test_a_version_whose_files_come_late_is_missing_not_refused_and_adopted_in_the_end(
    tmp_path, redis_url, monkeypatch
):
    monkeypatch.setattr(module, "TRY_AGAIN_S", 0.5)
    missing, refused = metrics.MISSING._value.get, metrics.REFUSED._value.get
    before = missing(), refused()
    config = build({"run": {"name": "late", "root": str(tmp_path)}, "redis": {"url": redis_url}})
    wire, engine = Wire(config), ScriptedEngine(lambda ids, sampling: ([], "eos"))

    async def on_swap() -> None: ...

    following = Follower(config, engine, wire, on_swap, on_swap)
    task = asyncio.create_task(following.run())
    version = Version(0, 1)
    notice = WeightsNotice(version=version, location=version.directory, digest="", size=0, published=0.0, canary=[])
    await streams.add(wire.client, wire.keys.weights, encode(notice))
    async with asyncio.timeout(20):
        while missing() < before[0] + 2:
            await asyncio.sleep(0.05)
        assert engine.version == Version(0, 0)
        (config.weights_dir / version.directory).mkdir(parents=True)
        assert await following.wait_for(1, 15.0)
    assert engine.version == version and following.swaps == 1
    assert following.refusals == 0 and refused() == before[1]
    said = [e for _, e in events.parse(await wire.client.xrange(wire.keys.events)) if e["kind"] != "swap"]
    assert [e["kind"] for e in said] == ["warning"], "once for each version"
    assert "weights 0.1 are announced, and" in said[0]["text"] and "weights.transport" in said[0]["text"]
    await stop(task)
    await wire.client.aclose()


async def test_a_version_is_held_while_it_is_read_and_no_longer(tmp_path, redis_url):
    config = build({"run": {"name": "held", "root": str(tmp_path)}, "redis": {"url": redis_url}})
    wire = Wire(config)
    seen: list[tuple[str, Version | None]] = []

    class Watched(ScriptedEngine):
        async def swap(self, notice: WeightsNotice, directory: Path) -> float:
            seen.append(("swap", following.loading))
            if notice.version.number == 2:
                raise CanaryRefused("not these")
            return await super().swap(notice, directory)

    async def on_swap() -> None:
        seen.append(("swapped", following.loading))

    async def hold() -> None:
        seen.append(("hold", following.loading))

    following = Follower(config, Watched(lambda ids, sampling: ([], "eos")), wire, on_swap, hold)
    task = asyncio.create_task(following.run())
    versions = [Version(0, number) for number in (1, 2)]
    async with asyncio.timeout(20):
        for version in versions:
            (config.weights_dir / version.directory).mkdir(parents=True)
            notice = WeightsNotice(
                version=version, location=version.directory, digest="", size=0, published=0.0, canary=[]
            )
            await streams.add(wire.client, wire.keys.weights, encode(notice))
            while following.swaps + following.refusals < version.number or following.loading:
                await asyncio.sleep(0.02)
    first, second = versions
    assert seen == [("hold", first), ("swap", first), ("swapped", None), ("hold", second), ("swap", second)]
    assert following.loading is None
    await stop(task)
    await wire.client.aclose()


async def test_a_server_that_was_emptied_gives_older_numbers_and_the_same_one_with_other_bits(tmp_path, redis_url):
    config = build({"run": {"name": "emptied", "root": str(tmp_path)}, "redis": {"url": redis_url}})
    wire, swapped = Wire(config), list[tuple[Version, str]]()

    class Noted(ScriptedEngine):
        async def swap(self, notice: WeightsNotice, directory: Path) -> float:
            swapped.append((notice.version, notice.digest))
            return await super().swap(notice, directory)

    async def nothing() -> None: ...

    following = Follower(config, Noted(lambda ids, sampling: ([], "eos")), wire, nothing, nothing)
    task = asyncio.create_task(following.run())
    first = [(Version(2, 17), "a"), (Version(2, 17), "a")]  # the second time for an actor that refused it
    again = [(Version(0, 0), "b"), (Version(0, 1), "c"), (Version(0, 1), "d")]
    async with asyncio.timeout(20):
        for version, digest in [*first, *again]:
            if version.number == 0:
                await wire.client.flushdb()
            (config.weights_dir / version.directory).mkdir(parents=True, exist_ok=True)
            notice = WeightsNotice(
                version=version, location=version.directory, digest=digest, size=0, published=0.0, canary=[]
            )
            await streams.add(wire.client, wire.keys.weights, encode(notice))
            while not swapped or swapped[-1] != (version, digest):
                await asyncio.sleep(0.02)
    assert swapped == [first[0], *again]
    await stop(task)
    await wire.client.aclose()


async def test_a_notice_of_an_emptied_server_whose_clock_is_behind_is_found(tmp_path, redis_url):
    config = build({"run": {"name": "behind", "root": str(tmp_path)}, "redis": {"url": redis_url}})
    wire = Wire(config)

    async def nothing() -> None: ...

    following = Follower(config, ScriptedEngine(lambda ids, sampling: ([], "eos")), wire, nothing, nothing)
    task = asyncio.create_task(following.run())
    async with asyncio.timeout(20):
        for id, version in (("1000-5", Version(0, 3)), ("1000-5", Version(1, 1)), ("999-0", Version(1, 2))):
            await wire.client.flushdb()
            (config.weights_dir / version.directory).mkdir(parents=True)
            notice = WeightsNotice(
                version=version, location=version.directory, digest=str(version), size=0, published=0.0, canary=[]
            )
            await wire.client.xadd(wire.keys.weights, {streams.FIELD: encode(notice)}, id=id)
            while following.engine.version != version:
                await asyncio.sleep(0.02)
    assert following.swaps == 3
    await stop(task)
    await wire.client.aclose()


async def test_reading_slow_files_is_not_the_swap_and_a_slow_swap_names_its_limit(tmp_path, redis_url):
    config = build(
        {
            "run": {"name": "slow", "root": str(tmp_path)},
            "redis": {"url": redis_url},
            "weights": {"swap_timeout_s": 0.2},
        }
    )
    wire = Wire(config)

    class Slow(ScriptedEngine):
        async def verify(self, notice: WeightsNotice, directory: Path) -> None:
            await asyncio.sleep(0.5)

        async def swap(self, notice: WeightsNotice, directory: Path) -> float:
            if notice.version.number == 2:
                await asyncio.sleep(30)
            return await super().swap(notice, directory)

    async def nothing() -> None: ...

    following = Follower(config, Slow(lambda ids, sampling: ([], "eos")), wire, nothing, nothing)
    task = asyncio.create_task(following.run())
    for version in (Version(0, 1), Version(0, 2)):
        (config.weights_dir / version.directory).mkdir(parents=True)
        notice = WeightsNotice(version=version, location=version.directory, digest="", size=0, published=0.0, canary=[])
        await streams.add(wire.client, wire.keys.weights, encode(notice))
        if version.number == 1:
            assert await following.wait_for(1, 15.0)
    with pytest.raises(EngineFailed, match=r"weights\.swap_timeout_s = 0\.2 s"):
        await task
    await wire.client.aclose()


@pytest.mark.slow
async def test_an_actor_that_waits_for_its_first_weights_says_so(tmp_path, redis_url, monkeypatch):
    monkeypatch.setattr(module, "LongWait", partial(LongWait, 0.2))
    config = build({"run": {"name": "first", "root": str(tmp_path)}, "redis": {"url": redis_url}})
    wire, engine = Wire(config), ScriptedEngine(lambda ids, sampling: ([], "eos"))
    engine.version = None

    async def nothing() -> None: ...

    task = asyncio.create_task(Follower(config, engine, wire, nothing, nothing).run())
    async with asyncio.timeout(20):
        while not await wire.client.xlen(wire.keys.events):
            await asyncio.sleep(0.05)
    await asyncio.sleep(2.5)
    told = [record["text"] for _, record in events.parse(await wire.client.xrange(wire.keys.events))]
    assert len(told) == 1, "and the next time fifteen seconds later"
    assert "first weights" in told[0] and "is the learner running?" in told[0]
    await stop(task)
    await wire.client.aclose()
