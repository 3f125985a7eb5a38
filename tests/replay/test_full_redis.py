"""A real server of a few MB that runs full: who writes payloads waits, nothing is lost, and the run goes on."""

import asyncio
import random
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import OutOfMemoryError

from services.replay.tasks import train_task
from shared import streams
from shared.config import build
from shared.group_store import GroupStore
from shared.messages import encode
from shared.streams import ACTORS, Inbox, Keys
from shared.versions import Version
from tests.replay.answered import Answered
from tests.replay.peers import Questions, client_of, header_for
from tests.replay.recording import Recording
from tests.replay.test_resync import Run

MB = 2**20


@pytest_asyncio.fixture
async def limit(redis_url):
    """Sets how many bytes the server may take beyond what it takes empty; no limit again afterwards."""
    client = client_of(redis_url)
    empty = (await client.info("memory"))["used_memory"]

    async def set_limit(size: int) -> None:
        await client.config_set("maxmemory", empty + size if size else 0)

    yield set_limit
    await client.config_set("maxmemory", 0)


def full_config(make_config, **replay):
    replay = {"policy": "none", "max_lag": 1, "max_bytes": 2**30} | replay
    return make_config(run={"steps": 24}, replay=replay)


def payloads_of(run: Run, size: int) -> None:
    for actor in run.actors:
        actor.payload_bytes = size


def check(run: Run, steps: int) -> None:
    assert [batch.step for _, batch in run.learner.trained] == list(range(steps))
    assert sorted(run.numbers) == list(range(steps * run.config.learner.batch)), "nothing is lost or trained twice"


async def test_a_full_server_makes_the_actors_wait_until_it_is_given_more_memory(make_config, limit):
    run = Run(full_config(make_config), every=50)  # no checkpoint, so no payload is ever freed
    payloads_of(run, 100_000)
    await limit(4 * MB)
    async with asyncio.timeout(40):
        while not all(actor.refused >= 20 for actor in run.actors):  # the server's own buffers make room come and go
            await asyncio.sleep(0.05)
        assert len(run.learner.trained) * run.config.learner.batch * 100_000 < 4 * MB, "no payload beyond the limit"
        for task in (run.replay, run.learning, *run.acting):
            assert not task.done(), "they all wait"
        await limit(0)
        await run.trained(10**9)
    await run.close()
    check(run, 24)


async def test_a_full_server_is_emptied_by_checkpoints_that_come_early(make_config, limit):
    run = Run(full_config(make_config), every=50)
    run.learner.heeds_memory = True
    payloads_of(run, 100_000)
    await limit(4 * MB)
    async with asyncio.timeout(40):
        await run.trained(10**9)
    await run.close()
    check(run, 24)
    assert run.learner.saved > 0


async def test_replay_frees_what_is_saved_on_a_server_that_takes_no_message_at_all(make_config, limit):
    run = Run(full_config(make_config), every=50)
    payloads_of(run, 100_000)
    async with asyncio.timeout(40):
        await run.trained(12)
        state = await run.close()
        payloads = len(await run.client.keys(run.keys.payload("*")))
        assert len(state.retired) > 30
        await run.client.set(streams.saved_key(run.keys), 12)  # and the word of it does not fit any more
        await limit(1)
        run.replay = run._new_replay()
        while len(await run.client.keys(run.keys.payload("*"))) > payloads - 30:
            assert not run.replay.done()
            await asyncio.sleep(0.05)
        await limit(0)
    await run.close()


async def test_payloads_leave_room_for_messages(make_config, limit):
    config = full_config(make_config)
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    inbox, store = Inbox(client, keys.tasks, ACTORS, "me"), GroupStore(client, keys)
    await inbox.create()
    task = train_task(config, Questions(3), 0, attempt=0, min_version=0)
    header = header_for(task, random.Random(0), Version(0, 0))
    await limit(4 * MB)
    refused: Any = None
    for number in range(200):
        try:
            await store.store(f"x{number}", encode(header), b"p" * 50_000, b"0-0")
        except OutOfMemoryError as error:
            refused = error
            break
    assert refused is not None
    assert not await store.store("x0", encode(header), b"p" * 50_000, b"0-0"), "what is there needs no room"
    assert await store.store("failed", encode(header), b"", b"0-0"), "a failure's header is a message"
    await inbox.create()
    await client.xadd(keys.results, {"m": b"a message of the learner" * 1000})


@pytest.mark.parametrize(
    ("policy", "reference", "of_a_token"), [("naive", "trainer", 4), ("naive", "engine", 0), ("none", "trainer", 0)]
)
def test_what_groups_take_counts_the_references_that_the_learner_keeps(policy, reference, of_a_token):
    recording = Recording()
    learner = {"batch": recording.batch, "reference": reference}
    rollout = {"group_size": recording.group_size}
    config = build({"learner": learner, "rollout": rollout, "replay": {"policy": policy, "capacity": 8}})
    run = Answered(config, recording, reject=lambda step, batch: batch.fresh[:1])
    trained: set[str] = set()
    for seen in run.play(4):
        trained |= set(seen.batch.fresh[1:])  # the learner writes no reference of what it refuses
    state = run.state
    there = {*state.fresh, *(row.id for row in state.buffer), *state.retired}
    assert trained < there and len(state.buffer) == (8 if policy == "naive" else 0)
    payloads = sum(run.headers[id].payload_bytes for id in there)
    assert state.payload_bytes == payloads + of_a_token * sum(sum(run.headers[id].sampled_tokens) for id in trained)
