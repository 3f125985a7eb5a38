"""The replay window while a run trains: it follows, and costs a reader's machine little."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.cancellation import stop
from shared.streams import Entry
from tests.e2e.page import Page
from tests.replay.peers import PeerActor, PeerLearner
from tests.replay.stored_groups import STEP, USUAL

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]

GROUPS, ROLLOUTS, UPDATES = 512, 16, 8
CPU_S = 0.2  # of the page's main thread per update; 0.26 and more when every row was made and laid out anew
ROWS = "#groups tbody tr[data-id]"
FETCHES = "return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/window/groups')).length"
CURVES = "return [...document.querySelectorAll('#curves path.main')].map((path) => path.getAttribute('d'))"
KEEP = "window.kept = new Map([...document.querySelectorAll(arguments[0])].map((row) => [row.dataset.id, row]))"
SAME = """const rows = [...document.querySelectorAll(arguments[0])].filter((row) => kept.has(row.dataset.id));
    return [rows.length, rows.every((row) => kept.get(row.dataset.id) === row)]"""


class Unhurried(PeerActor):
    """Leaves the page's first groups in the buffer for some updates, also of a page on a busy machine."""

    async def _answer(self, entry: Entry) -> None:
        await asyncio.sleep(0.1)
        await super()._answer(entry)


@contextmanager
def training(page: Page) -> Iterator[None]:
    """An actor and a learner that train the page's run, in a thread of their own."""
    url, over = page.config.redis.url, threading.Event()

    async def train() -> None:
        learner, actor = PeerLearner(url, page.config), Unhurried(url, page.config, 0)
        learner.saved = STEP
        peers = [asyncio.create_task(learner.run()), asyncio.create_task(actor.run())]
        while not over.is_set() and not any(peer.done() for peer in peers):
            await asyncio.sleep(0.1)
        await stop(*peers)

    thread = threading.Thread(target=lambda: asyncio.run(train()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def main_thread_s(page: Page) -> float:
    """CPU seconds that the page's main thread has used."""
    metrics = page.browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")


def test_a_page_follows_training_and_an_update_costs_little(tmp_path: Path, redis_url: str) -> None:
    page = Page(tmp_path, redis_url, GROUPS, ROLLOUTS, USUAL)
    try:
        page.open()
        page.find(ROWS)
        page.browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        page.js(KEEP, ROWS)
        where, tiles, curves = page.texts("#where"), page.texts("#tiles dd"), page.js(CURVES)
        fetched, busy, deadline = page.js(FETCHES), main_thread_s(page), time.monotonic() + 240
        stayed, same = 0, True
        with training(page):
            while (updates := page.js(FETCHES) - fetched) < UPDATES:
                assert time.monotonic() < deadline, (updates, page.texts("#status"))
                if updates and not stayed:  # while some of the first groups are there
                    stayed, same = page.js(SAME, ROWS)
                time.sleep(1.0)  # to ask is work for the main thread as well
            spent = (main_thread_s(page) - busy) / updates
        print(f"{spent:.3f} s of the main thread per update, over {updates}")
        shown = page.texts(ROWS)
        assert page.texts("#where") != where and int(page.texts("#where")[0].split()[0]) > STEP
        assert sum(a != b for a, b in zip(page.texts("#tiles dd"), tiles, strict=True)) >= 4
        drawn = page.js(CURVES)
        assert len(drawn) >= len(curves) > 5 and not set(curves) & set(drawn), "each curve has grown"
        assert len(shown) == GROUPS and 0 < stayed < GROUPS and same, "the row of a group stays the same element"
        assert page.complaints() == []
        assert spent < CPU_S
    finally:
        page.close()
