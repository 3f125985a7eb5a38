"""An actor's calls to a Redis that is full or away: they wait, they say so once, and nothing is lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from cli.run.ports import free_port
from cli.run.redis_binary import find_redis_binary
from services.actor.wire import Wire
from shared import events
from shared.config import build
from shared.group_store import GroupStore
from shared.outage import WHAT_TO_DO


@pytest.fixture
def wire(redis_url: str) -> Any:
    return Wire(build({"run": {"name": "outage"}, "redis": {"url": redis_url}}))


async def told(wire: Any) -> list[str]:
    return [record["text"] for _, record in events.parse(await wire.client.xrange(wire.keys.events))]


@pytest.mark.slow
async def test_groups_wait_at_a_full_server_and_are_stored_once_there_is_room(wire: Any) -> None:
    store = GroupStore(wire.client, wire.keys)

    async def put(id: str) -> bool:
        return await wire.call(lambda: store.store(id, b"header", b"p" * 2**16, b"0-0"))

    await wire.client.setrange("of another run", 20 * 2**20, "x")
    try:
        used = (await wire.client.info("memory"))["used_memory"]
        await wire.client.config_set("maxmemory", int(1.05 * used))  # room for messages alone
        puts = [asyncio.create_task(put(f"t{n}")) for n in range(5)]
        await asyncio.sleep(1.5)
        assert not any(task.done() for task in puts)
        assert await told(wire) == [f"{WHAT_TO_DO['memory']}."], "five calls tell it once"
        await wire.client.config_set("maxmemory", 0)
        async with asyncio.timeout(10):
            assert await asyncio.gather(*puts) == [True] * 5
        assert await wire.client.xlen(wire.keys.groups) == 5
    finally:
        await wire.client.config_set("maxmemory", 0)
        await wire.client.aclose()


@pytest.mark.slow
async def test_calls_wait_for_a_server_that_is_away_however_long(tmp_path: Path) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    wire = Wire(build({"run": {"name": "away"}, "redis": {"url": url, "wait_s": 0.2}}))
    calls = [asyncio.create_task(wire.call(wire.client.ping)) for _ in range(3)]
    await asyncio.sleep(1.5)  # longer than redis.wait_s, which is for the start
    assert not any(call.done() for call in calls)
    command = [find_redis_binary().path, "--port", str(port), "--save", "", "--dir", tmp_path, "--bind", "127.0.0.1"]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(20):
            assert await asyncio.gather(*calls) == [True] * 3
    finally:
        await wire.client.aclose()
        server.terminate()
        await server.wait()


async def test_other_errors_are_not_waited_for(wire: Any) -> None:
    await wire.client.set("text", "x")
    with pytest.raises(ResponseError):
        await wire.call(lambda: wire.client.incr("text"))
    await wire.client.aclose()
