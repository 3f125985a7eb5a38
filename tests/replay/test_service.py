"""The replay service over a real Redis, with peers that speak the real protocol, and crashes at any moment."""

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import ConnectionError

from services.replay import transitions
from services.replay.service import Replay
from services.replay.state import Store
from services.replay.watch import Watch
from services.replay.window.history import COLUMNS
from shared import events
from shared.cancellation import stop
from shared.config import Config, build
from shared.messages import EVAL, TRAIN, Hello, Task, decode, encode
from shared.only_one import OnlyOne
from shared.streams import Entry, Inbox, Keys
from shared.versions import Version
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of


def new_replay(config, held_out=None):
    return Replay(config, client_of(config.redis.url), Questions(50), held_out, CollectorRegistry())


async def run_to_the_end(
    config, *, actors=2, held_out=None, fail_share=0.0, payload_bytes=64, crashes=0, learner_crashes=0, seed=0
):
    """Run replay and its peers until the learner is told to finish, crashing them on the way."""
    url, rng = config.redis.url, random.Random(seed)
    learner = PeerLearner(url, config, seed=seed)
    peers = [PeerActor(url, config, seed + i, fail_share, payload_bytes) for i in range(actors)]
    service = new_replay(config, held_out)
    running = {"replay": asyncio.create_task(service.run()), "learner": asyncio.create_task(learner.run())}
    await asyncio.sleep(0.05)
    workers = [asyncio.create_task(peer.run()) for peer in peers]
    try:
        async with asyncio.timeout(60):
            while not learner.finished:
                await asyncio.sleep(rng.uniform(0.02, 0.12))
                for task in [*running.values(), *workers]:
                    if task.done() and not learner.finished:
                        task.result()
                if crashes:
                    crashes -= 1
                    await stop(running["replay"])
                    service = new_replay(config, held_out)
                    running["replay"] = asyncio.create_task(service.run())
                if learner_crashes and not learner.finished:
                    learner_crashes -= 1
                    await stop(running["learner"])
                    running["learner"] = asyncio.create_task(learner.run())
    finally:
        await stop(*running.values(), *workers)
    client = client_of(url)
    state = await Store(client, Keys(config.run.name)).load(now=0.0)
    records = [record for _, record in events.parse(await client.xrange(Keys(config.run.name).events))]
    assert all(not peer.begun_too_early for peer in peers)
    for peer in peers:
        learner.headers |= peer.headers
    return state, learner, records


def check_the_run(config, state, learner, records):
    """What must hold whatever happened: every step once, in order, and by the method."""
    steps = config.run.steps
    b, K, capacity = config.learner.batch, config.replay_groups, config.replay.capacity
    assert [r["step"] for r in records if r["kind"] == "step"] == list(range(steps))
    last = {}
    for lineage, batch in learner.trained:
        assert last.setdefault(batch.step, (lineage, batch))[1] == batch, "a step trained again has the same batch"
    batches = [last[step][1] for step in range(steps)]
    fresh = [id for batch in batches for id in batch.fresh]
    assert all(count == 1 for count in Counter(fresh).values()), "a group was fresh twice"
    assert len(fresh) == steps * b
    at = {id: batch.step for batch in batches for id in batch.fresh}
    for batch in batches:
        assert len(batch.fresh) == b and len(set(batch.replay)) == len(batch.replay)
        assert len(batch.replay) <= K or batch.parts, "K groups, or K x G single rollouts"
        assert all(at[id] < batch.step for id in batch.replay), "a group was replayed in the step it was fresh in"
    assert all(r["lag_max"] <= config.replay.max_lag for r in records if r["kind"] == "step")
    assert len(state.buffer) <= capacity
    c = state.counters
    assert (c.step, c.trained, c.trained_twice, c.lost) == (steps, steps * b, 0, 0)
    assert c.generated == c.trained + c.filtered and not state.tasks and not state.fresh


@pytest.mark.parametrize("policy", ["headroom_drift", "naive", "uniform", "none"])
async def test_a_run_trains_every_group_once(make_config, policy):
    config = make_config(replay={"policy": policy})
    state, learner, records = await run_to_the_end(config)
    check_the_run(config, state, learner, records)
    replayed = sum(r["replay_groups"] for r in records if r["kind"] == "step")
    assert (replayed > 0) == (policy != "none")
    assert bool(learner.scans) == (policy == "headroom_drift")


async def test_a_wake_up_sorts_the_fresh_groups_once_and_starts_the_clock_where_something_was_filed(
    make_config, monkeypatch
):
    happened, told, sorts = [], {}, []
    waits_for, trained, fresh = Watch.waits_for, Watch.trained, transitions.fresh_for_step

    def hear(self, what, filed):
        happened.append(filed)
        waits_for(self, what, filed)

    def hear_of_step(self, step, seconds):
        told[step] = seconds
        trained(self, step, seconds)

    monkeypatch.setattr(Watch, "waits_for", hear)
    monkeypatch.setattr(Watch, "trained", hear_of_step)
    monkeypatch.setattr(transitions, "fresh_for_step", lambda *given: sorts.append(1) or fresh(*given))
    config = make_config()
    await run_to_the_end(config)
    assert happened[0] is False and sum(happened) > config.run.steps
    assert set(told) >= {*range(config.run.steps - 1)} and all(seconds > 0 for seconds in told.values())
    assert 0 < len(sorts) <= len(happened)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
async def test_the_lag_bound_holds(make_config, max_lag):
    config = make_config(replay={"max_lag": max_lag})
    state, learner, records = await run_to_the_end(config, seed=max_lag)
    check_the_run(config, state, learner, records)


@pytest.mark.slow
async def test_replay_killed_again_and_again_loses_nothing(make_config):
    config = make_config(run={"steps": 20})
    state, learner, records = await run_to_the_end(config, crashes=12, fail_share=0.1, seed=5)
    check_the_run(config, state, learner, records)


async def test_a_learner_that_resumes_is_given_the_same_batches_again(make_config):
    config = make_config(run={"steps": 20})
    state, learner, records = await run_to_the_end(config, learner_crashes=4, seed=6)
    assert learner.lineage >= 2
    check_the_run(config, state, learner, records)


async def test_a_learner_whose_checkpoint_outlived_redis_goes_on_from_it(make_config):
    config = make_config(run={"steps": 12}, replay={"policy": "none"})
    learner, actor = PeerLearner(config.redis.url, config), PeerActor(config.redis.url, config, 0)
    learner.saved = 9  # and the server is empty
    tasks = [asyncio.create_task(new_replay(config).run()), asyncio.create_task(learner.run())]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(actor.run()))
    await learner.until_finished(30)
    await stop(*tasks)
    numbers = [int(id[1:]) for _, batch in learner.trained for id in batch.fresh]
    assert sorted(numbers) == list(range(36, 48)), "the data set goes on where step 9 begins"


@pytest.mark.slow
async def test_both_crash(make_config):
    config = make_config(run={"steps": 20}, replay={"max_lag": 2})
    state, learner, records = await run_to_the_end(config, crashes=6, learner_crashes=4, fail_share=0.1, seed=7)
    check_the_run(config, state, learner, records)


@pytest.mark.slow
async def test_a_reader_that_fails_in_the_moment_of_a_commit_is_noticed(make_config, monkeypatch):
    """Python 3.11's wait_for drops a cancellation that comes when its future is done; nobody would fill the queue."""
    service, failed = new_replay(make_config()), asyncio.Event()
    read, transaction = Inbox.read, service.store.transaction

    async def failing_once(inbox: Inbox, count: int):
        if not failed.is_set():
            failed.set()
            raise ConnectionError("cut")
        return await read(inbox, count)

    @asynccontextmanager
    async def forgetful(state):
        async with transaction(state) as tx:
            yield tx
        if not service.metrics.reconnects._value.get():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    monkeypatch.setattr(Inbox, "read", failing_once)
    monkeypatch.setattr(service.store, "transaction", forgetful)
    running = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(10):
            while not (service.metrics.reconnects._value.get() and service.waiting_for != "Redis"):
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await stop(running)
    assert failed.is_set()


async def test_evaluation_frames_the_run_and_its_rounds_are_complete(make_config):
    config = make_config(eval={"every": 5, "samples": 2}, replay={"max_lag": 1})
    held_out = Questions(9)
    state, learner, records = await run_to_the_end(config, held_out=held_out, crashes=3)
    check_the_run(config, state, learner, records)
    evals = {r["round"]: r for r in records if r["kind"] == "eval"}
    assert sorted(evals) == [0, 5, 10, 12]
    assert all(r["n"] == 9 and r["failed"] == 0 for r in evals.values())
    steps = [r for r in records if r["kind"] == "step"]
    assert all(0 <= r["em"] <= 1 for r in evals.values()) and not any("em" in r for r in steps), "EM is held-out"
    assert all({*COLUMNS, "correct_share"} <= r.keys() for r in steps), "the window's curves have their figures"
    assert evals[0]["version_max"] == [0, 0] and evals[12]["version_min"][1] == 12
    first_step = min(i for i, r in enumerate(records) if r["kind"] == "step")
    assert [r["kind"] for r in records].index("eval") < first_step, "the baseline is in before the first step"


async def test_training_tasks_lie_before_an_evaluation_which_has_no_more_out_than_actors_play_at_once(make_config):
    config = make_config(actor={"groups": 3}, eval={"samples": 2})
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    running = [
        asyncio.create_task(w.run()) for w in (new_replay(config, Questions(99)), PeerLearner(config.redis.url, config))
    ]
    async with asyncio.timeout(20):
        while not await client.xlen(keys.tasks):
            await asyncio.sleep(0.02)
    await stop(*running)
    kinds = [decode(fields[b"m"], Task).kind for _, fields in cast(Any, await client.xrange(keys.tasks))]
    assert kinds == [TRAIN] * 8 + [EVAL] * 5, "max_lag 1: two steps; of 3 x 3 rollouts an evaluation has 2 a question"


class SlowAtEvaluating(PeerActor):
    """Answers rounds between the first and the last only when `trained` is set."""

    def __init__(self, url: str, config: Config) -> None:
        super().__init__(url, config, seed=3)
        self.slots, self.trained, self.withheld = 1000, asyncio.Event(), 0
        self._last = config.run.steps

    async def _answer(self, entry: Entry) -> None:
        task = decode(entry.data, Task)
        if task.kind == EVAL and task.round not in (0, self._last):
            self.withheld += 1
            await self.trained.wait()
        await super()._answer(entry)


@pytest.mark.slow
async def test_an_evaluation_that_takes_long_does_not_keep_the_weights_from_moving(make_config):
    """Reported against prime-rl."""
    config = make_config(run={"steps": 8}, eval={"every": 3}, replay={"policy": "none", "max_lag": 0})
    learner, actor = PeerLearner(config.redis.url, config), SlowAtEvaluating(config.redis.url, config)
    service = new_replay(config, Questions(1))
    tasks = [asyncio.create_task(work.run()) for work in (service, learner, actor)]
    async with asyncio.timeout(60):
        while len(learner.trained) < 8:
            await asyncio.sleep(0.02)
        assert actor.withheld >= 2 and not learner.finished, "rounds 3 and 6 are open all the while"
        actor.trained.set()
        while not learner.finished:
            await asyncio.sleep(0.02)
    await stop(*tasks)


async def test_payloads_of_groups_nobody_needs_are_deleted_after_the_checkpoint(make_config):
    config = make_config(run={"steps": 12})
    state, _, _ = await run_to_the_end(config)
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    left = {key.decode().rpartition(":")[2] async for key in client.scan_iter(keys.payload("*"))}
    assert left == {row.id for row in state.buffer}


async def test_a_task_that_always_fails_is_given_up_and_replaced(make_config):
    config = make_config(run={"steps": 3}, replay={"max_attempts": 2, "policy": "none"})
    state, _, records = await run_to_the_end(config, fail_share=0.45, seed=9)
    c = state.counters
    assert c.lost > 0 and c.trained == 12 and c.issued == 12 + c.lost
    assert any("given up after 2 attempts" in r.get("text", "") for r in records)


async def test_malformed_entries_are_buried_and_the_run_goes_on(make_config):
    config = make_config(run={"steps": 4})
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    for junk in (b"", b"\xff\xff", b"\x80", b"x" * 100_000):
        await client.xadd(keys.groups, {"m": junk})
        await client.xadd(keys.results, {"m": junk})
    state, learner, records = await run_to_the_end(config)
    check_the_run(config, state, learner, records)
    letters: Any = await client.xrange(keys.dead)
    assert len(letters) == 8
    assert {fields[b"source"] for _, fields in letters} == {b"groups", b"results"}
    assert max(len(fields[b"data"]) for _, fields in letters) <= 65_536


async def test_a_second_replay_process_takes_over_and_the_first_leaves(make_config):
    config = make_config(run={"steps": 5000})
    url = config.redis.url
    learner, actor = PeerLearner(url, config), PeerActor(url, config, 0)
    first = asyncio.create_task(new_replay(config, None).run())
    others = [asyncio.create_task(learner.run())]
    await asyncio.sleep(0.05)
    others.append(asyncio.create_task(actor.run()))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(new_replay(config, None).run())
    done, _ = await asyncio.wait([first], timeout=5)
    assert done and "taken over" in str(first.exception())
    await stop(second, *others)


@pytest.mark.slow
async def test_what_a_replaced_process_read_in_its_last_moment_reaches_the_new_one(make_config):
    config = make_config(run={"steps": 4})
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    old, new = new_replay(config), new_replay(config)
    tasks = [asyncio.create_task(old.run())]
    await asyncio.sleep(0.3)
    tasks.append(asyncio.create_task(new.run()))
    await asyncio.sleep(0.3)
    for _ in range(4):  # at least one goes to the old process, which may not write any more
        await client.xadd(keys.results, {"m": encode(Hello(version=Version(0, 0)))})
        await asyncio.sleep(0.05)
    async with asyncio.timeout(15):
        while not (tasks[0].done() and await client.xlen(keys.results) == 0):
            await asyncio.sleep(0.1)
    assert new.state.counters.version == Version(0, 0)
    tasks[0].exception()
    await stop(*tasks)


async def test_a_buffer_larger_than_the_memory_bound_slows_the_run_and_does_not_stop_it(make_config):
    config = make_config(run={"steps": 12}, replay={"max_bytes": 2**20, "capacity": 400, "policy": "naive"})
    state, learner, records = await run_to_the_end(config, payload_bytes=40_000)
    check_the_run(config, state, learner, records)
    assert state.payload_bytes > config.replay.max_bytes
    assert any("replay.max_bytes" in r.get("text", "") for r in records), "and says so"


async def test_a_task_whose_entry_has_vanished_is_tried_again(make_config, monkeypatch):
    monkeypatch.setattr("services.replay.service.WATCH_S", 0.2)
    config = make_config(run={"steps": 2})
    client, keys = client_of(config.redis.url), Keys(config.run.name)
    learner, actor = PeerLearner(config.redis.url, config), PeerActor(config.redis.url, config, 0)
    service = new_replay(config)
    tasks = [asyncio.create_task(service.run()), asyncio.create_task(learner.run())]
    async with asyncio.timeout(30):
        while await client.xlen(keys.tasks) < 8:
            await asyncio.sleep(0.02)
        await client.xtrim(keys.tasks, maxlen=3, approximate=False)  # five of eight are gone
        tasks.append(asyncio.create_task(actor.run()))
        while not learner.finished:
            await asyncio.sleep(0.02)
    await stop(*tasks)
    assert service.state.counters.failed == 5 and service.state.counters.lost == 0


async def test_a_learner_that_ends_right_after_replay_began_was_heard(make_config, monkeypatch):
    monkeypatch.setattr("services.replay.service.WATCH_S", 600.0)
    config = make_config(run={"steps": 2})
    learner, service = OnlyOne(config, "learner"), new_replay(config)
    assert learner.try_begin()
    task = asyncio.create_task(service.run())
    async with asyncio.timeout(30):
        while not service._watch.learner.was_heard:
            await asyncio.sleep(0.02)
    learner.leave()
    await stop(task)


async def test_a_finished_run_goes_on_when_it_is_given_more_steps(make_config):
    config = make_config(run={"steps": 5})
    await run_to_the_end(config)
    longer = build(config.model_dump() | {"run": config.run.model_dump() | {"steps": 9}})
    learner, actor = PeerLearner(config.redis.url, longer), PeerActor(config.redis.url, longer, 1)
    learner.saved = 5
    tasks = [asyncio.create_task(new_replay(longer).run()), asyncio.create_task(learner.run())]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(actor.run()))
    await learner.until_finished(30)
    await stop(*tasks)
    assert [batch.step for _, batch in learner.trained] == [5, 6, 7, 8]
