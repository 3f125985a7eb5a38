"""Streams over a real Redis: nothing lost, nothing kept from those who can do it, nothing blocked by a restart."""

import asyncio
import time

import pytest
import pytest_asyncio
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shared import streams
from shared.group_store import GroupStore
from shared.redis_client import connect_async
from shared.streams import Inbox, Keys


@pytest_asyncio.fixture
async def client(redis_url):
    client = connect_async(redis_url)
    yield client
    await client.aclose()


async def put(client, stream, *values):
    for value in values:
        await streams.add(client, stream, value)


async def test_an_entry_is_delivered_again_to_its_reader_until_it_is_acknowledged(client):
    await put(client, "s", *[b"%d" % i for i in range(7)])
    first = Inbox(client, "s", "g", "me")
    await first.read(1, block_ms=10)  # creates the group
    got = [entry for _ in range(3) for entry in await first.read(3, block_ms=10)]
    assert [entry.data for entry in got] == [b"%d" % i for i in range(7)]
    await first.ack(got[0].id)
    again = Inbox(client, "s", "g", "me")
    back = [entry for _ in range(4) for entry in await again.read(2, block_ms=10)]
    assert [entry.data for entry in back] == [b"%d" % i for i in range(1, 7)], "in portions smaller than the backlog"
    assert await client.xlen("s") == 6, "an acknowledged entry is deleted"


async def test_a_dead_readers_entries_are_taken_over_and_a_living_ones_are_not(client):
    await put(client, "s", b"dead", b"alive")
    dead, alive = Inbox(client, "s", "g", "dead"), Inbox(client, "s", "g", "alive")
    await dead.create()
    (lost,) = await dead.read(1, block_ms=10)
    (held,) = await alive.read(1, block_ms=10)
    heir = Inbox(client, "s", "g", "heir", reclaim_ms=200)
    for _ in range(5):
        await asyncio.sleep(0.08)
        await alive.renew([held.id])
    taken = [entry for _ in range(3) for entry in await heir.read(5, block_ms=80)]
    assert [entry.id for entry in taken] == [lost.id]


async def test_a_group_that_is_missing_is_created_again(client):
    inbox = Inbox(client, "s", "g", "me")
    await put(client, "s", b"a")
    await inbox.read(1, block_ms=10)
    assert [e.data for e in await inbox.read(1, block_ms=10)] == [b"a"]
    await client.flushall()
    await put(client, "s", b"b")
    got = [entry for _ in range(2) for entry in await inbox.read(1, block_ms=10)]
    assert [entry.data for entry in got] == [b"b"]


async def test_a_group_is_written_once_and_its_task_acknowledged_in_any_case(client):
    keys = Keys("r")
    tasks = Inbox(client, keys.tasks, streams.ACTORS, "a")
    await tasks.create()
    await put(client, keys.tasks, b"task", b"task again")
    first, second = await tasks.read(2, block_ms=10)
    store = GroupStore(client, keys)
    assert await store.store("t1", b"header", b"payload", first.id) is True
    assert await store.store("t1", b"other", b"different", second.id) is False
    assert await client.get(keys.payload("t1")) == b"payload"
    assert await client.xlen(keys.groups) == 1
    assert await client.xlen(keys.tasks) == 0


async def test_groups_stored_at_once_are_each_written_once_and_hear_of_their_own(client):
    keys = Keys("r")
    tasks = Inbox(client, keys.tasks, streams.ACTORS, "a")
    await tasks.create()
    store = GroupStore(client, keys)
    await put(client, keys.tasks, *[b"task"] * 40)
    entries = await tasks.read(40, block_ms=10)
    await client.xadd(keys.payload("t7"), {"not": "a payload"})  # in its way
    put_all = [store.store(f"t{i % 30}", b"header", b"payload%d" % i, entry.id) for i, entry in enumerate(entries)]
    outcomes = await asyncio.gather(*put_all)
    assert outcomes == [i != 7 and i < 30 for i in range(40)]
    assert await client.xlen(keys.groups) == 29
    assert await client.xlen(keys.tasks) == 0
    assert await client.get(keys.payload("t29")) == b"payload29"
    assert sorted(await client.keys(keys.payload("*"))) == sorted(keys.payload(f"t{i}").encode() for i in range(30))


async def test_a_group_is_stored_whose_fellow_is_cancelled(client):
    keys = Keys("r")
    store = GroupStore(client, keys)
    await Inbox(client, keys.tasks, streams.ACTORS, "a").create()
    puts = [asyncio.create_task(store.store(f"t{i}", b"header", b"payload", b"0-0")) for i in range(4)]
    await asyncio.sleep(0)
    puts[0].cancel()  # the one that writes
    puts[2].cancel()
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(outcomes[1]), type(outcomes[3])] == [bool, bool]
    assert isinstance(outcomes[2], asyncio.CancelledError)
    assert {keys.payload("t1").encode(), keys.payload("t3").encode()} <= set(await client.keys(keys.payload("*")))


@pytest.mark.alone
async def test_many_writers_do_not_wait_out_a_server_that_hangs_one_after_the_other(client, redis_url, monkeypatch):
    monkeypatch.setattr("shared.group_store.WAIT_S", 0.4)
    keys = Keys("r")
    await Inbox(client, keys.tasks, streams.ACTORS, "a").create()
    async with redis.asyncio.Redis.from_url(redis_url, socket_timeout=0.4, retry=Retry(NoBackoff(), 0)) as impatient:
        store = GroupStore(impatient, keys)
        assert await store.store("before", b"header", b"payload", b"0-0")
        await client.client_pause(3000)  # ms; whoever asks hears nothing until then, as from a stopped server
        began = time.monotonic()
        puts = [store.store(f"t{i}", b"header", b"payload", b"0-0") for i in range(40)]
        ends = await asyncio.gather(*puts, return_exceptions=True)
        assert time.monotonic() - began < 2.5
        assert all(isinstance(end, redis.TimeoutError | TimeoutError) for end in ends), ends
        await client.ping()  # the next test is not to begin before


async def test_dead_letters_are_bounded_in_number_and_size(client):
    keys = Keys("r")
    async with client.pipeline() as pipe:
        for _ in range(streams.DEAD_LETTERS_KEPT + 500):
            streams.bury(pipe, keys, "groups", "why " * 1000, b"x" * 200)
        streams.bury(pipe, keys, "groups", "big", b"x" * 10**6)
        await pipe.execute()
    assert await client.xlen(keys.dead) <= streams.DEAD_LETTERS_KEPT + 100  # trimmed by whole nodes
    (_, last), *_ = await client.xrevrange(keys.dead, count=1)
    assert len(last[b"data"]) == streams.DEAD_LETTER_BYTES
