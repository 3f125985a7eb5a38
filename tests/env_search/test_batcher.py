"""Merging by itself: what waits, what is refused, and that nothing asked for is left without an end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from services.env_search.batcher import Batcher, Hung, Overloaded, search_keys
from services.env_search.cache import HitCache, Hits, normalise_query


class Echo:
    """Finds document len(query) with score k; waits for `gate`."""

    def __init__(self, open_gate: bool = True) -> None:
        self.sizes: list[int] = []
        self.started = threading.Event()
        self.gate = threading.Event()
        if open_gate:
            self.gate.set()

    def search(self, queries: list[str], k: int):
        self.sizes.append(len(queries))
        self.started.set()
        self.gate.wait(20)
        ids = np.full((len(queries), k), -1, np.int64)
        ids[:, 0] = [len(query) for query in queries]
        return ids, np.full((len(queries), k), k, np.float32)


@asynccontextmanager
async def running(backend: Echo, **settings) -> AsyncIterator[Batcher]:
    batcher = Batcher(backend, **{"window_s": 0.01, "max_batch": 4, "max_waiting": 8, "limit_s": 30} | settings)
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        backend.gate.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_askers_of_one_window_share_a_search():
    backend = Echo()
    async with running(backend, window_s=0.2) as batcher:
        hits = await asyncio.gather(*(batcher.find(("x" * i, 1)) for i in range(1, 4)))
    assert [found.documents for found in hits] == [(1,), (2,), (3,)]
    assert backend.sizes == [3]


async def test_a_full_batch_does_not_wait_for_the_window():
    async with running(Echo(), window_s=60) as batcher, asyncio.timeout(10):
        await asyncio.gather(*(batcher.find(("x" * i, 1)) for i in range(4)))


async def test_no_batch_is_larger_than_allowed():
    backend = Echo()
    async with running(backend, max_batch=3, max_waiting=100) as batcher:
        await asyncio.gather(*(batcher.find(("x" * i, 1)) for i in range(10)))
    assert sum(backend.sizes) == 10
    assert max(backend.sizes) == 3


async def test_more_than_may_wait_is_refused_and_the_rest_answered():
    backend = Echo(open_gate=False)
    async with running(backend, window_s=0, max_batch=1, max_waiting=2) as batcher:
        searching = asyncio.create_task(batcher.find(("a", 1)))
        await asyncio.to_thread(backend.started.wait, 10)
        waiting = [asyncio.create_task(batcher.find((query, 1))) for query in ("bb", "ccc")]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await batcher.find(("dddd", 1))
        repeated = asyncio.create_task(batcher.find(("bb", 1)))  # waits with the other, takes no place
        await asyncio.sleep(0)
        backend.gate.set()
        found = await asyncio.gather(searching, *waiting, repeated)
    assert [hits.documents for hits in found] == [(1,), (2,), (3,), (2,)]


async def test_an_asker_that_gives_up_does_not_take_the_answer_from_another():
    backend = Echo(open_gate=False)
    async with running(backend, window_s=0) as batcher:
        impatient = asyncio.create_task(batcher.find(("query", 1)))
        patient = asyncio.create_task(batcher.find(("query", 1)))
        await asyncio.to_thread(backend.started.wait, 10)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        backend.gate.set()
        assert (await patient).documents == (5,)
    assert backend.sizes == [1]


async def test_stopping_ends_every_wait():
    backend = Echo(open_gate=False)
    async with running(backend, window_s=0, max_batch=1) as batcher:
        asked = [asyncio.create_task(batcher.find((query, 1))) for query in ("a", "b")]
        await asyncio.to_thread(backend.started.wait, 10)
    async with asyncio.timeout(10):
        ends = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)


async def test_behind_a_search_that_hangs_nobody_waits_and_all_goes_on_when_it_ends(monkeypatch):
    monkeypatch.setattr("services.env_search.batcher.LOOK_S", 0.05)
    backend = Echo(open_gate=False)
    async with running(backend, window_s=0, max_batch=1, limit_s=0.2) as batcher, asyncio.timeout(10):
        asked = [asyncio.create_task(batcher.find((query, 1))) for query in ("a", "bb")]
        assert [type(end) for end in await asyncio.gather(*asked, return_exceptions=True)] == [Hung, Hung]
        assert batcher.hangs
        with pytest.raises(Hung):
            await batcher.find(("ccc", 1))
        backend.gate.set()
        while batcher.hangs:
            await asyncio.sleep(0.01)
        assert (await batcher.find(("ccc", 1))).documents == (3,)
    assert backend.sizes == [1, 1], "what was refused is not searched"


def test_each_key_gets_its_own_number_of_hits():
    class Three:
        def search(self, queries: list[str], k: int):
            ids = np.tile(np.array([4, 2, 9, -1]), (len(queries), 1))[:, :k]
            return ids, np.where(ids < 0, 0.0, 1.5).astype(np.float32)

    found = search_keys(Three(), [("a", 1), ("b", 4)])
    assert found == [Hits((4,), (1.5,)), Hits((4, 2, 9), (1.5, 1.5, 1.5))]


def test_the_cache_forgets_what_was_used_longest_ago():
    cache = HitCache(2)
    for query in ("a", "b"):
        cache.put((query, 1), Hits((1,), (1.0,)))
    cache.get(("a", 1))
    cache.put(("c", 1), Hits((1,), (1.0,)))
    assert [cache.get((query, 1)) is not None for query in ("a", "b", "c")] == [True, False, True]
    none = HitCache(0)
    none.put(("a", 1), Hits((1,), (1.0,)))
    assert len(none) == 0


def test_queries_are_normalised_without_losing_case():
    assert normalise_query("  Who\twas\n Beyonce\N{COMBINING ACUTE ACCENT} ") == "Who was Beyoncé"
