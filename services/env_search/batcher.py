"""Merges the searches of concurrent requests into one call of the backend.

A query's way: asked -> waiting (the same query asked twice waits once) -> taken with up to `max_batch` others
-> searched in the one search thread -> every asker gets its hits. While a batch is searched the next one
gathers, so the window is only waited out when the searcher was idle. Every query handed in ends: with hits, the
backend's error, Overloaded, or Hung: a thread cannot be killed, so while a search goes on for longer than anybody
waits nobody is let wait behind it.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from services.env_search.backend import NO_DOCUMENT, SearchBackend
from services.env_search.cache import Hits, Key

log = logging.getLogger(__name__)
LOOK_S = 0.5  # between two looks at a search; a process that was stopped meanwhile counts one of them


class Overloaded(Exception):
    """More queries are waiting than will be searched in any useful time."""


class Hung(Exception):
    """The search under way has passed its time limit."""


class Batcher:
    """Owns the search thread. `run` must be running in a task; `find` may be called from any coroutine of that
    loop.
    """

    def __init__(
        self,
        backend: SearchBackend,
        *,
        window_s: float,
        max_batch: int,
        max_waiting: int,
        limit_s: float,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._backend = backend
        self._window_s = window_s
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._limit_s = limit_s
        self._on_batch = on_batch
        self.searching_s = 0.0  # of the search under way
        self._waiting: dict[Key, asyncio.Future[Hits]] = {}
        self._searching: dict[Key, asyncio.Future[Hits]] = {}
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")

    @property
    def hangs(self) -> bool:
        """Whether the search under way has passed its limit."""
        return self.searching_s >= self._limit_s

    async def find(self, key: Key) -> Hits:
        """The hits of (query, k). Raises Overloaded, Hung, or what the backend raised."""
        if self.hangs:
            raise Hung
        future = self._searching.get(key) or self._waiting.get(key)
        if future is None:
            if len(self._waiting) >= self._max_waiting:
                raise Overloaded
            future = asyncio.get_running_loop().create_future()
            self._waiting[key] = future
            self._arrived.set()
            if len(self._waiting) >= self._max_batch:
                self._full.set()
        # An asker that gives up must not take the result from the others.
        return await asyncio.shield(future)

    async def run(self) -> None:
        """Search batches until cancelled."""
        try:
            while True:
                if not self._waiting:
                    await self._arrived.wait()
                    await self._gather()
                await self._search_batch()
        finally:
            for future in (*self._waiting.values(), *self._searching.values()):
                future.cancel()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self) -> None:
        """Wait out the window, or until a batch is full."""
        if self._window_s and len(self._waiting) < self._max_batch:
            self._full.clear()
            try:
                await asyncio.wait_for(self._full.wait(), self._window_s)
            except TimeoutError:
                return

    async def _search_batch(self) -> None:
        keys = list(self._waiting)[: self._max_batch]
        self._searching = {key: self._waiting.pop(key) for key in keys}
        self._arrived.clear()
        self._on_batch(len(keys))
        loop = asyncio.get_running_loop()
        search = loop.run_in_executor(self._thread, search_keys, self._backend, keys)
        try:
            while not (await asyncio.wait({search}, timeout=LOOK_S))[0]:
                self.searching_s += LOOK_S
                if self.hangs:
                    self._refuse_all()
        finally:
            search.cancel()
        if self.hangs:
            log.warning("the search that hung has ended after %.0f s: queries are searched again", self.searching_s)
        self.searching_s = 0.0
        if error := search.exception():
            _fail(self._searching, error)
        else:
            for key, hits in zip(keys, search.result(), strict=True):
                if not self._searching[key].done():
                    self._searching[key].set_result(hits)
        self._searching = {}

    def _refuse_all(self) -> None:
        if not all(future.done() for future in self._searching.values()):
            log.error(
                "a search of %d queries hangs: it has gone on for %.0f s, and every query is refused until it ends",
                len(self._searching),
                self.searching_s,
            )
        for asked in (self._searching, self._waiting):
            _fail(asked, Hung())
        self._waiting.clear()


def _fail(asked: dict[Key, asyncio.Future[Hits]], error: BaseException) -> None:
    for future in asked.values():
        if not future.done():
            future.set_exception(error)
            future.exception()  # an asker that gave up does not read it


def search_keys(backend: SearchBackend, keys: list[Key]) -> list[Hits]:
    """Search all keys at the largest k of them; each gets its own k. Ties are broken by number, so a cut is
    exact.
    """
    ids, scores = backend.search([query for query, _ in keys], max(k for _, k in keys))
    found = []
    for (_, k), row_ids, row_scores in zip(keys, ids, scores, strict=True):
        real = row_ids[:k] != NO_DOCUMENT
        found.append(Hits(tuple(row_ids[:k][real].tolist()), tuple(row_scores[:k][real].tolist())))
    return found
