"""The replay window while a run trains: it follows, and costs a reader's machine little."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import numpy as np
import pytest

from shared.cancellation import stop
from shared.streams import Entry
from tests.e2e.page import Page
from tests.replay.peers import PeerActor, PeerLearner
from tests.replay.stored_groups import STEP, USUAL

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]

GROUPS, ROLLOUTS, UPDATES = 512, 16, 8
CPU_S = 0.2  # of the page's main thread per update; 0.26 and more when every row was made and laid out anew
LONGEST_S = 0.5  # that a click may have to wait; what else the machine does may make it longer in half of the updates
ROWS = "#groups tbody tr[data-id]"
FETCHES = "return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/window/groups')).length"
CURVES = "return [...document.querySelectorAll('#curves path.main')].map((path) => path.getAttribute('d'))"
WATCH = """window.long = [];
    const noted = (list) => long.push(...list.getEntries().map(({ duration }) => duration / 1000));
    new PerformanceObserver(noted).observe({ type: "longtask" });
    return PerformanceObserver.supportedEntryTypes.includes("longtask")"""
COLOURS = """const { width, height, clientWidth } = document.getElementById("scatter"), ratio = width / clientWidth;
    const { data } = document.getElementById("scatter").getContext("2d").getImageData(0, 0, width, height);
    const at = (x, y) => 4 * (Math.floor(y * ratio) * width + Math.floor(x * ratio));
    return arguments[0].map(([x, y]) => data.slice(at(x, y), at(x, y) + 4).join())"""
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
        assert page.js(WATCH)
        where, tiles, curves = page.texts("#where"), page.texts("#tiles dd"), page.js(CURVES)
        fetched, busy, deadline = page.js(FETCHES), main_thread_s(page), time.monotonic() + 240
        stayed, same = 0, True
        with training(page):
            while (updates := page.js(FETCHES) - fetched) < UPDATES:
                assert time.monotonic() < deadline, (updates, page.texts("#status"))
                if not 0 < stayed < GROUPS:  # until some of the first groups have left, and not all
                    stayed, same = page.js(SAME, ROWS)
                time.sleep(1.0)  # to ask is work for the main thread as well
            spent = (main_thread_s(page) - busy) / updates
        long = sorted(page.js("return long"), reverse=True)
        print(f"{spent:.3f} s of the main thread per update, over {updates}; the longest tasks, in s: {long}")
        shown = page.texts(ROWS)
        assert page.texts("#where") != where and int(page.texts("#where")[0].split()[0]) > STEP
        assert sum(a != b for a, b in zip(page.texts("#tiles dd"), tiles, strict=True)) >= 4
        drawn = page.js(CURVES)
        assert len(drawn) >= len(curves) > 5 and not set(curves) & set(drawn), "each curve has grown"
        assert len(shown) == GROUPS and 0 < stayed < GROUPS and same, "the row of a group stays the same element"
        page.until(lambda: shows_the_data(page), "the state that training ended in")
        assert_scatter_is_to_scale(page)
        assert page.complaints() == []
        assert spent < CPU_S and max(long[UPDATES // 2 :], default=0.0) < LONGEST_S
    finally:
        page.close()


def told(page: Page, what: str) -> dict[str, Any]:
    """What the page is told when it asks."""
    return httpx.get(f"{page.url}/window/{what}").json()


def shows_the_data(page: Page) -> bool:
    """Whether tiles, curves and scatter have the figures of the service's answers."""
    now, groups, columns = told(page, "now"), told(page, "groups"), told(page, "steps?after=-1")["columns"]
    known = {name: [v for v in values if v is not None] for name, values in columns.items()}
    recent = {name: [v for v in values[-10:] if v is not None] for name, values in columns.items()}
    idle = [w / s for w, s in zip(columns["wait_s"], columns["step_s"], strict=True) if w is not None]
    tiles = dict(zip(page.texts("#tiles dt"), page.texts("#tiles dd:not(.note)"), strict=True))
    curves = dict(zip(page.texts("#curves figcaption"), page.texts("#curves figcaption b"), strict=True))
    wanted_tiles = {
        "learner idle": f"{100 * fmean(recent['wait_s']) / fmean(recent['step_s']):.1f} %" if recent["wait_s"] else "–",
        "acceptance": f"{100 * fmean(recent['acceptance']):.1f} %",
        "lag": f"{fmean(recent['lag_mean']):.2f}",
        "held-out EM": "71.0 %",
        "buffer": f"{now['buffer_groups']} / {now['capacity']}",
    }
    wanted_curves = {
        "acceptance": f"{100 * known['acceptance'][-1]:.1f} %",
        "replay age": f"{known['age_mean'][-1]:.1f}",
        "lag": f"{known['lag_mean'][-1]:.2f}",
        "learner idle": f"{100 * idle[-1]:.1f} %",
        "reward": f"{known['reward_mean'][-1]:.3f}",
    }
    shown_curves = {name.removesuffix(value): value for name, value in curves.items()}
    drawn, marks = page.scatter(), groups["mark"]
    return (
        wanted_tiles.items() <= tiles.items()
        and wanted_curves.items() <= shown_curves.items()
        and curve_points(page, "acceptance") == [round(69 - 54 * a, 1) for a in known["acceptance"]]
        and (drawn["passed"], drawn["refused"], len(drawn["accepted"])) == tuple(map(marks.count, (0, 1, 2)))
        and drawn["within"] == sum(d <= now["tau"] for d in groups["drift"] if d is not None)
    )


def curve_points(page: Page, name: str) -> list[float]:
    """The heights of a curve's points; 69 is its lower edge and 15 the upper."""
    script = """return [...document.querySelectorAll("#curves figure")].find((f) =>
        f.querySelector(".name").textContent.startsWith(arguments[0])).querySelector("path.main").getAttribute("d")"""
    return [float(point.split()[1]) for point in page.js(script, name).replace("M", "L").split("L")[1:]]


def assert_scatter_is_to_scale(page: Page) -> None:
    """The accepted points are where their Headroom and Drift put them, in one colour, and the gate is at tau."""
    groups, drawn = told(page, "groups"), page.scatter()
    accepted = [i for i, mark in enumerate(groups["mark"]) if mark == 2]
    x, y = np.array(drawn["accepted"]).T
    drift = np.log10([groups["drift"][i] for i in accepted])
    across = np.polyfit(drift, x, 1)
    up = np.polyfit([groups["headroom"][i] for i in accepted], y, 1)
    assert len(accepted) > 5 and across[0] > 0 > up[0]
    assert np.abs(np.polyval(across, drift) - x).max() < 0.5
    assert np.abs(np.polyval(up, [groups["headroom"][i] for i in accepted]) - y).max() < 0.5
    assert abs(np.polyval(across, math.log10(told(page, "now")["tau"])) - drawn["gate"]) < 1
    assert len(set(page.js(COLOURS, drawn["accepted"]))) == 1
