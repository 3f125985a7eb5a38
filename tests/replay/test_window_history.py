"""The steps that the window shows, read backwards from a real events stream."""

import uuid
from typing import Any

import pytest
import pytest_asyncio
from redis import ConnectionError

from services.replay.window.history import STEPS_KEPT, History
from shared import events
from shared.streams import FIELD, Keys
from tests.replay.peers import client_of


class Reads:
    """A client that counts what it is asked."""

    def __init__(self, url: str) -> None:
        self.client, self.entries, self.before_it_fails = client_of(url), 0, 1000

    async def xrevrange(self, *words, **named):
        self.before_it_fails -= 1
        if self.before_it_fails == 0:
            raise ConnectionError
        reply: Any = await self.client.xrevrange(*words, **named)
        self.entries += len(reply)
        return reply


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest_asyncio.fixture
async def stream(redis_server_url: str) -> tuple[Reads, Keys]:
    return Reads(redis_server_url), Keys(f"h-{uuid.uuid4().hex[:8]}")


async def _emit(reads: Reads, keys: Keys, steps: range) -> None:
    async with reads.client.pipeline() as pipe:
        for step in steps:
            events.emit(pipe, keys, "step", step=step, steps=900, acceptance=step / 1000, learner={"wait_s": 1.0})
            events.emit(pipe, keys, "rollout", text="x" * 500, id=str(step))
        await pipe.execute()


async def test_many_steps_are_read_once_and_only_the_last_are_kept(stream: tuple[Reads, Keys]):
    reads, keys = stream
    history = History(reads, keys, Clock())  # pyright: ignore[reportArgumentType]
    await history.look()
    assert history.since(-1)["columns"]["step"] == [] and history.tag == "0-0"
    await _emit(reads, keys, range(700))
    await history.look()
    shown = history.since(-1)["columns"]
    assert shown["step"] == list(range(700 - STEPS_KEPT, 700)) and shown["wait_s"] == [1.0] * STEPS_KEPT
    assert reads.entries < 2 * STEPS_KEPT + 200, "the stream is not read beyond what is kept"
    reads.entries, tag = 0, history.tag
    await history.look()
    assert (reads.entries, history.tag) == (1, tag), "the newest of before, by which it is known"
    await _emit(reads, keys, range(700, 703))
    await history.look()
    assert reads.entries == 1 + 6 + 1 and history.tag != tag
    assert history.since(699)["columns"]["step"] == [700, 701, 702]
    assert history.planned == 900


async def test_a_step_that_is_trained_again_voids_what_came_after_it(stream: tuple[Reads, Keys]):
    reads, keys = stream
    history = History(reads, keys, Clock())  # pyright: ignore[reportArgumentType]
    await _emit(reads, keys, range(20))
    await history.look()
    await _emit(reads, keys, range(10, 12))
    await history.look()
    assert history.since(-1)["columns"]["step"] == list(range(12))


@pytest.mark.parametrize("id", ["1000-1", "1-1"])
async def test_what_an_emptied_server_says_is_read_whatever_its_clock(stream: tuple[Reads, Keys], id: str):
    reads, keys = stream
    history = History(reads, keys, Clock())  # pyright: ignore[reportArgumentType]
    told = [b'{"kind":"warning","time":1.0,"text":"w"}', b'{"kind":"step","time":1.0,"step":3}']
    for step, data in enumerate(told):
        await reads.client.xadd(keys.events, {FIELD: data}, id=f"500-{step}")
    await history.look()
    assert history.tag == "500-1"
    await reads.client.delete(keys.events)
    await history.look()
    for step, data in enumerate([*told, b'{"kind":"step","time":2.0,"step":4}']):
        await reads.client.xadd(keys.events, {FIELD: data}, id=f"{id}{step}")
    await history.look()
    assert history.since(-1)["columns"]["step"] == [3, 4] and history.tag == f"{id}2"
    assert len(history.since(-1)["notices"]) == 1, "the same once"


async def test_looks_in_quick_succession_are_one(stream: tuple[Reads, Keys]):
    reads, keys = stream
    history = History(reads, keys, lambda: 5.0)  # pyright: ignore[reportArgumentType]
    await _emit(reads, keys, range(2))
    await history.look()
    await _emit(reads, keys, range(2, 4))
    await history.look()
    assert history.since(-1)["columns"]["step"] == [0, 1]


async def test_a_walk_that_fails_on_its_way_is_taken_again_whole(stream: tuple[Reads, Keys]):
    reads, keys = stream
    history = History(reads, keys, Clock())  # pyright: ignore[reportArgumentType]
    await _emit(reads, keys, range(120))
    reads.before_it_fails = 2
    with pytest.raises(ConnectionError):
        await history.look()
    await history.look()
    assert history.since(-1)["columns"]["step"] == list(range(120))
