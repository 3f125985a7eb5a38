"""Whether pages that are open cost the selection anything: the same run with none and with several that never rest."""

import asyncio
from statistics import median

import httpx
import pytest
from tokenizers import Tokenizer

from shared.cancellation import stop
from shared.config import Config
from tests.replay.peers import PeerActor, PeerLearner, client_of
from tests.replay.stored_groups import STEP, fill
from tests.replay.test_window import TOKENIZER, Make, served

STEPS, GROUPS, PAGES = 30, 512, 3
PAGE_ASKS_EVERY_S = 0.1  # ten times as often as a page does


async def _run(config: Config, pages: int) -> list[float]:
    """selection_ms of each step, with this many pages open."""
    await fill(client_of(config.redis.url), config, Tokenizer.from_file(str(TOKENIZER)), GROUPS, 4)
    learner, actor = PeerLearner(config.redis.url, config), PeerActor(config.redis.url, config, 0)
    learner.saved = STEP
    async with served(config) as (_, http):
        peers = [asyncio.create_task(learner.run()), asyncio.create_task(actor.run())]
        peers += [asyncio.create_task(_look(http)) for _ in range(pages)]
        try:
            while not learner.finished:
                await asyncio.sleep(0.05)
            async with asyncio.timeout(10):  # the history is looked up about once a second
                columns = await _steps(http)
                while len(columns["selection_ms"]) < STEPS - 1:
                    await asyncio.sleep(0.2)
                    columns = await _steps(http)
        finally:
            await stop(*peers)
    return columns["selection_ms"]


async def _steps(http: httpx.AsyncClient) -> dict[str, list[float]]:
    return (await http.get("/window/steps", params={"after": STEP})).json()["columns"]


async def _look(http: httpx.AsyncClient) -> None:
    """Ask as an open page does, with a group opened every time."""
    while True:
        await http.get("/window/now")
        groups = (await http.get("/window/groups")).json()
        await http.get("/window/steps", params={"after": STEP})
        await http.get(f"/groups/{groups['id'][0]}")
        await http.get(f"/groups/{groups['id'][0]}/payload")
        await asyncio.sleep(PAGE_ASKS_EVERY_S)


@pytest.mark.slow
async def test_open_pages_do_not_slow_the_selection(make_config: Make) -> None:
    sections = {
        "run": {"steps": STEP + STEPS},
        "replay": {"capacity": GROUPS, "select": 64, "scan_chunk": 64},
        "learner": {"batch": 12},
    }
    without = await _run(make_config(**sections), 0)
    watched = await _run(make_config(**sections), PAGES)
    print(f"selection of a step, median: {median(without):.3f} ms alone, {median(watched):.3f} ms with {PAGES} pages")
    assert median(watched) < 1.5 * median(without) + 0.5
