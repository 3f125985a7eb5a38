"""Values of replay's own that somebody has written over: a run goes on without them and says so, or says why not."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.replay.service import Replay
from services.replay.state import Store
from shared import events
from shared.cancellation import stop
from shared.errors import UserError
from shared.streams import Keys, saved_key
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of

GARBAGE = b"\xc1garbage"
TABLES = ("tasks", "fresh", "buffer", "batches", "retired")


async def test_a_run_goes_on_without_what_cannot_be_read_and_trains_every_step(make_config):
    config = make_config()
    url, keys, client = config.redis.url, Keys(config.run.name), client_of(config.redis.url)
    learner, actor = PeerLearner(url, config), PeerActor(url, config, 0)
    peers = [asyncio.create_task(peer.run()) for peer in (learner, actor)]
    first = asyncio.create_task(_replay(config).run())
    try:
        async with asyncio.timeout(60):
            while len(learner.trained) < 5:
                await asyncio.sleep(0.01)
        await stop(first)
        for table in TABLES:
            key = f"{keys.prefix}replay:{table}"
            there: Any = await client.hkeys(key)
            for field in (*there[:1], b"of nobody"):
                await client.hset(key, field, GARBAGE)  # pyright: ignore[reportGeneralTypeIssues]
        peers.append(asyncio.create_task(_replay(config).run()))
        await learner.until_finished(within_s=60)
        assert not any(peer.done() and peer.exception() for peer in peers)
    finally:
        await stop(first, *peers)
    steps = {batch.step: batch for _, batch in learner.trained}
    assert sorted(steps) == list(range(config.run.steps))
    letters: Any = await client.xrange(keys.dead)
    sources = [fields[b"source"].decode() for _, fields in letters if fields[b"data"] == GARBAGE]
    told = [r["text"] for _, r in events.parse(await client.xrange(keys.events)) if r["kind"] == "warning"]
    for table in TABLES:
        assert f"replay:{table}:of nobody" in sources
        assert any(f"of replay:{table} cannot be read" in text for text in told)
    state = await Store(client, keys).load(0.0)
    assert not state.damaged and state.counters.finished and state.counters.trained_twice == 0


async def test_a_question_whose_task_cannot_be_read_is_counted_as_failed_and_its_round_ends(make_config):
    config = make_config(eval={"limit": 3})
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    learner = PeerLearner(config.redis.url, config)
    first, said = asyncio.create_task(_replay(config, Questions(3)).run()), asyncio.create_task(learner.run())
    key = f"{keys.prefix}replay:tasks"
    questions = [f"e00000000-00000{n}" for n in range(3)]
    try:
        async with asyncio.timeout(60):
            while not all([await client.hexists(key, name) for name in questions]):  # pyright: ignore
                await asyncio.sleep(0.01)
        await stop(first)
        await client.hset(key, mapping=dict.fromkeys(questions, GARBAGE))  # pyright: ignore[reportGeneralTypeIssues]
        first = asyncio.create_task(_replay(config, Questions(3)).run())
        async with asyncio.timeout(60):
            while not (state := await Store(client, keys).load(0.0)).counters.evals_done:
                await asyncio.sleep(0.05)
    finally:
        await stop(first, said)
    rounds = [r for _, r in events.parse(await client.xrange(keys.events)) if r["kind"] == "eval"]
    assert state.counters.evals_done == [0] and [(r["n"], r["failed"]) for r in rounds] == [(0, 3)]


@pytest.mark.parametrize("name", ["replay:state", "replay:epoch"])
async def test_what_a_run_cannot_be_without_is_refused_in_a_sentence_and_left_as_it_is(make_config, name: str):
    config = make_config()
    client, key = client_of(config.redis.url), f"{Keys(config.run.name).prefix}{name}"
    await client.set(key, GARBAGE)
    with pytest.raises((UserError, ExceptionGroup)) as refused:
        await _replay(config).run()
    error = refused.value.exceptions[0] if isinstance(refused.value, ExceptionGroup) else refused.value
    assert isinstance(error, UserError) and key in str(error) and "delete" in str(error)
    assert await client.get(key) == GARBAGE


async def test_a_learners_mark_that_is_no_count_does_not_free_a_full_server(make_config):
    config = make_config()
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    await client.set(saved_key(keys), "-1")
    with pytest.raises(UserError, match="no count"):
        await Store(client, keys).make_room()


def _replay(config, held_out: Questions | None = None) -> Replay:
    return Replay(config, client_of(config.redis.url), Questions(50), held_out, CollectorRegistry())
