"""A real Redis whose append-only file cannot grow, as on a full disk: writes are refused, and taken later."""

import asyncio
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.chaos.session import IGNORE_XFSZ
from cli.run import local_redis
from shared import streams
from shared.group_store import GroupStore
from shared.redis_client import connect, connect_async, is_full, is_short_of_disk, wait_until_up
from shared.streams import Inbox, Keys

KEYS = Keys("disk")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """(address, process id) of a server with an append-only file."""
    made = local_redis.prepare(tmp_path, 0)
    process = subprocess.Popen([*IGNORE_XFSZ, *made.command], stdout=subprocess.DEVNULL)
    wait_until_up(made.url, 20)
    yield made.url, process.pid
    process.kill()
    process.wait()


async def test_every_kind_of_write_is_refused_in_words_that_are_understood_and_taken_once_there_is_room(
    server: tuple[str, int],
) -> None:
    url, pid = server
    client = connect_async(url)
    store, inbox = GroupStore(client, KEYS), Inbox(client, KEYS.tasks, "actors", "me")
    await inbox.create()
    await store.store("before", b"header", b"payload", b"0-0")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        until_refused(url)
        with pytest.raises(redis.ResponseError) as plain:
            await client.set("a", 1)
        with pytest.raises(redis.ResponseError) as together:
            async with client.pipeline(transaction=True) as pipe:
                streams.add(pipe, KEYS.groups, b"m")
                await pipe.execute()
        with pytest.raises(redis.ResponseError) as script:
            await store.store("during", b"header", b"payload", b"0-0")
        with pytest.raises(redis.ResponseError) as read:
            await inbox.read(1)
        for error in (plain, together, script, read):
            assert is_full(error.value) and is_short_of_disk(error.value), error.value
        assert await client.xlen(KEYS.groups) == 1  # reading goes on
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await client.aclose()
    with connect(url) as client_after:
        deadline = time.monotonic() + 10
        while is_refused(client_after):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert client_after.xlen(KEYS.groups) == 1


def until_refused(url: str) -> None:
    """The server finds out when it writes: one more write, and it refuses the next."""
    with connect(url) as client:
        deadline = time.monotonic() + 10
        while not is_refused(client):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def is_refused(client: redis.Redis) -> bool:
    try:
        client.set("probe", 1)
    except redis.ResponseError as error:
        return is_full(error)
    return False
