"""Whether open pages cost the selection anything: a run with several that never rest, opened and shut in turns."""

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

BLOCK, PAIRS = 5, 6  # steps with the pages shut, then as many with them open, and how often
STEPS, GROUPS, ROLLOUTS, PAGES = 2 * BLOCK * PAIRS, 512, 16, 3
PAGE_ASKS_EVERY_S = 0.1  # ten times as often as a page does
SLOWER = 1.25  # at most, of what it takes alone


def is_watched(step: int) -> bool:
    """Whether the pages are open at this step."""
    return step // BLOCK % 2 == 1


async def _run(config: Config) -> dict[int, float]:
    """selection_ms by step."""
    await fill(client_of(config.redis.url), config, Tokenizer.from_file(str(TOKENIZER)), GROUPS, ROLLOUTS)
    learner, actor = PeerLearner(config.redis.url, config), PeerActor(config.redis.url, config, 0)
    learner.saved = STEP
    async with served(config, within_s=200) as (_, http):
        peers = [asyncio.create_task(learner.run()), asyncio.create_task(actor.run())]
        peers += [asyncio.create_task(_look(http, learner)) for _ in range(PAGES)]
        try:
            while not learner.finished:
                await asyncio.sleep(0.05)
            async with asyncio.timeout(20):  # the history is looked up about once a second
                columns = await _steps(http)
                while len(columns["selection_ms"]) < STEPS - 1:
                    await asyncio.sleep(0.2)
                    columns = await _steps(http)
        finally:
            await stop(*peers)
    return {int(step): ms for step, ms in zip(columns["step"], columns["selection_ms"], strict=True)}


async def _steps(http: httpx.AsyncClient) -> dict[str, list[float]]:
    return (await http.get("/window/steps", params={"after": STEP})).json()["columns"]


async def _look(http: httpx.AsyncClient, learner: PeerLearner) -> None:
    """Ask as an open page does, with a group opened every time."""
    while True:
        if is_watched(STEP + len(learner.trained)):
            await http.get("/window/now")
            groups = (await http.get("/window/groups")).json()
            await http.get("/window/steps", params={"after": STEP})
            await http.get(f"/groups/{groups['id'][0]}")
            await http.get(f"/groups/{groups['id'][0]}/payload")
        await asyncio.sleep(PAGE_ASKS_EVERY_S)


@pytest.mark.slow
@pytest.mark.alone
async def test_open_pages_do_not_slow_the_selection(make_config: Make) -> None:
    config = make_config(
        run={"steps": STEP + STEPS},
        replay={"capacity": GROUPS, "select": 64, "scan_chunk": 64},
        learner={"batch": 12},
        rollout={"group_size": ROLLOUTS},
    )
    took = await _run(config)
    blocks = [
        median(took[step] for step in range(first + 1, first + BLOCK) if step in took)  # at the first they open or shut
        for first in range(STEP, STEP + STEPS, BLOCK)
    ]
    pairs = [(blocks[i], blocks[i + 1]) for i in range(0, len(blocks), 2)]
    ratios = [watched / alone for alone, watched in pairs]
    print(f"selection: {median(a for a, _ in pairs):.3f} ms alone, {median(ratios):.2f} of it with {PAGES} pages")
    assert median(ratios) < SLOWER
