"""`dapo` in the running service: what has no spread of rewards is never trained, is replaced, and can end a run."""

import asyncio
import re

import pytest

from services.replay.state import Store
from shared.cancellation import stop
from shared.config import build
from shared.errors import UserError
from shared.streams import Keys
from tests.replay.answered import Answered
from tests.replay.peers import PeerActor, PeerLearner, client_of
from tests.replay.recording import Recording
from tests.replay.test_service import check_the_run, new_replay, run_to_the_end


@pytest.mark.parametrize(("max_lag", "crashes"), [(0, 0), (1, 6), (3, 0)])
async def test_every_trained_group_has_a_spread_and_every_batch_is_full(make_config, max_lag, crashes):
    config = make_config(replay={"policy": "dapo", "max_lag": max_lag, "max_refill_rounds": 100})
    state, learner, records = await run_to_the_end(config, crashes=crashes, fail_share=0.05, seed=max_lag)
    check_the_run(config, state, learner, records)
    fresh = {id for _, batch in learner.trained for id in batch.fresh}
    assert all(len(set(learner.headers[id].correct)) == 2 for id in fresh)
    without = set(learner.headers) - fresh
    c = state.counters
    assert c.filtered == c.refilled == len(without) > 0
    assert c.issued == config.run.steps * config.learner.batch + c.refilled
    last = [r for r in records if r["kind"] == "step"][-1]
    assert (last["groups_filtered"], last["groups_generated"]) == (len(without), len(without) + c.trained)
    assert not learner.scans and all(not batch.replay for _, batch in learner.trained)


async def test_the_payloads_of_dropped_groups_are_deleted_at_once(make_config):
    config = make_config(replay={"policy": "dapo", "max_refill_rounds": 100}, run={"steps": 4})
    state, _, _ = await run_to_the_end(config)
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    there = {key.decode().rpartition(":")[2] async for key in client.scan_iter(keys.payload("*"))}
    assert state.counters.refilled and there == set(state.retired), "only what a learner may ask for again is there"


async def serve_until(service, learner, actor, condition) -> BaseException | None:
    """Run the three until the service ends or the condition holds; the service's error."""
    tasks = [asyncio.create_task(service.run()), asyncio.create_task(learner.run())]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(actor.run()))
    async with asyncio.timeout(30):
        while not tasks[0].done() and not condition():
            await asyncio.sleep(0.02)
    error = tasks[0].exception() if tasks[0].done() else None
    await stop(*tasks)
    return error


def leaf(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def test_a_step_that_finds_no_spread_ends_the_run_with_a_sentence_and_can_be_taken_up_again(make_config):
    config = make_config(run={"steps": 3}, replay={"policy": "dapo", "max_refill_rounds": 2, "max_lag": 0})
    url = config.redis.url
    learner, actor = PeerLearner(url, config), PeerActor(url, config, 0)
    actor.right_share = 1.0
    error = leaf(await serve_until(new_replay(config), learner, actor, lambda: False))
    assert isinstance(error, UserError) and "replay.max_refill_rounds = 2 allows 2 x 4" in str(error)
    said = re.search(r"step 0 has dropped (\d+) groups", str(error))
    assert said and 8 <= int(said[1]) < 8 + 4, "more than the limit by those that arrived together with its last one"

    state = await Store(client_of(url), Keys(config.run.name)).load(now=0.0)
    assert (state.counters.refilled_in_step, state.counters.step) == (int(said[1]), 0)
    again = leaf(await serve_until(new_replay(config), PeerLearner(url, config), actor, lambda: False))
    assert isinstance(again, UserError), "a restart under the same limit says the same"
    state = await Store(client_of(url), Keys(config.run.name)).load(now=0.0)
    assert state.counters.refilled >= 2 * 8, "of groups that it has asked for itself: other prompts may be better"

    higher = build(config.model_dump() | {"replay": config.replay.model_dump() | {"max_refill_rounds": 50}})
    learner, actor = PeerLearner(url, higher), PeerActor(url, higher, 1)
    learner.lineage = 5
    assert await serve_until(new_replay(higher), learner, actor, lambda: learner.finished) is None
    assert [batch.step for _, batch in learner.trained] == [0, 1, 2]
    state = await Store(client_of(url), Keys(config.run.name)).load(now=0.0)
    assert state.counters.trained == 12 and state.counters.refilled_in_step == 0


@pytest.mark.parametrize("max_lag", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_200_steps_equal_a_literal_version(max_lag):
    recording = Recording()
    steps, b = 200, recording.batch
    replay = {"policy": "dapo", "max_lag": max_lag, "max_refill_rounds": 1000}
    config = build(
        {
            "run": {"steps": steps},
            "learner": {"batch": b},
            "replay": replay,
            "rollout": {"group_size": recording.group_size},
        }
    )
    run = Answered(config, recording, seed=max_lag)
    trained: list[str] = []
    for seen in run.play(steps):
        assert len(seen.batch.fresh) == b and not seen.batch.replay and not seen.batch.left_out and not seen.after
        for id in seen.batch.fresh:
            assert len({r for r in run.headers[id].rewards if r is not None}) > 1, "the bound"
            assert 0 <= seen.step - run.headers[id].version_min.number <= max_lag
        if max_lag == 0:  # the prompts in their order, those without a spread passed over
            spread = [f"t{n:08d}" for n in range(len(run.headers)) if any(run.headers[f"t{n:08d}"].signs)]
            assert sorted(seen.batch.fresh) == spread[len(trained) : len(trained) + b]
        trained += seen.batch.fresh
    c = run.state.counters
    assert len(set(trained)) == len(trained) == steps * b
    assert c.refilled == c.filtered == len(run.headers) - len(trained) > steps
    assert {id for id, header in run.headers.items() if any(header.signs)} == set(trained), "none is lost"
