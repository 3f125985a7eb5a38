"""A large buffer and a long evaluation hold replay's event loop up no longer than small ones."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from services.replay import evaluation, transitions
from services.replay.buffer import StoredGroup
from services.replay.evaluation import AT_ONCE
from services.replay.policies import get_policy
from services.replay.records import Counters
from services.replay.service import Replay
from services.replay.state import State, Store, Transaction
from services.replay.watch import PAGE, Watch
from shared.cancellation import stop
from shared.messages import EVAL
from shared.streams import Keys
from shared.versions import Version
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of, header_for

GROUPS, STEP = 10_000, 40
MANY = 1000  # actors
HELD_UP_S = 0.05  # of CPU; the longest is a fifth of it


@contextmanager
def longest_turn(found: list[float]) -> Iterator[None]:
    """Appends the most CPU seconds that one turn of this thread's event loop took: nothing else ran meanwhile."""
    run, longest, thread = asyncio.Handle._run, 0.0, threading.get_ident()

    def timed(handle: asyncio.Handle) -> None:
        nonlocal longest
        begun = time.thread_time()
        run(handle)
        if threading.get_ident() == thread:
            longest = max(longest, time.thread_time() - begun)

    gc.collect()
    gc.freeze()  # what the tests before have left takes a collection longer than all that is measured here
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.unfreeze()
        found.append(longest)


def stored(number: int) -> StoredGroup:
    return StoredGroup(
        id=f"s{number:08d}", sequence=number, step=number * STEP // GROUPS, headroom_ref=0.5,
        headroom=number % 997 / 997, drift=float("nan"), uses=0, tokens=100, bytes=10, prompt=number, right=2, scored=4,
        reward_mean=0.5, reward_std=0.5, advantage=3.0, responses=[0.0] * 8,
    )  # fmt: skip


@pytest.mark.slow
async def test_ten_thousand_groups_are_loaded_ordered_and_saved_in_short_turns(make_config, redis_url):
    config = make_config(
        run={"steps": STEP + 3}, learner={"batch": 4}, replay={"capacity": GROUPS, "select": 4, "max_lag": 1}
    )
    keys, client = Keys(config.run.name), client_of(redis_url)
    store = Store(client, keys)
    await store.take_over()
    state = await store.load(time.time())
    async with store.transaction(state) as tx:
        state.counters.step, state.counters.version, state.counters.inserted = STEP, Version(0, STEP), GROUPS
        state.counters.issued = STEP * 4
        for number in range(GROUPS):
            tx.store(stored(number))

    learner, found = PeerLearner(redis_url, config), list[float]()
    learner.saved = STEP
    actor = PeerActor(redis_url, config, seed=0)
    with longest_turn(found):
        for steps in (1, 3):  # the second by a replay process that was started anew
            replay = Replay(config, client_of(redis_url), Questions(200), None, CollectorRegistry())
            running = [asyncio.create_task(work.run()) for work in (replay, actor, learner)]
            async with asyncio.timeout(60):
                while replay.state is None or replay.state.counters.step < STEP + steps:
                    await asyncio.sleep(0.01)
            assert len(replay.state.buffer) >= GROUPS - 4
            learner.saved = STEP + len(learner.trained)
            await stop(*running)
    assert any(batch.replay for _, batch in learner.trained)
    assert found[0] < HELD_UP_S, f"one turn took {1000 * found[0]:.0f} ms"


@pytest.mark.slow
def test_a_round_of_any_length_has_a_bounded_number_of_questions_out(make_config):
    config, state, rng = make_config(run={"steps": 2}, learner={"batch": 2}), State(Counters(started=0.0)), Random(0)
    state.counters.version = Version(0, 0)
    train, held_out = Questions(50), Questions(3 * AT_ONCE + 5)
    pipe = redis.Redis().pipeline()  # connects to nothing
    tx, policy = Transaction(state, Keys("many"), pipe), get_policy("naive")
    asked: list[int] = []
    while not state.counters.evals_done:
        transitions.issue_tasks(config, state, tx, policy, train)
        transitions.issue_questions(config, state, tx, held_out, MANY)
        out = [task for task in state.tasks.values() if task.kind == EVAL]
        assert len(out) == min(AT_ONCE, len(held_out) - len(asked))
        assert evaluation.left(config, state, held_out) == len(held_out) - len(asked)
        for task in rng.sample(out, min(len(out), AT_ONCE // 2)):
            asked.append(task.number)
            transitions.group_arrived(config, state, tx, policy, header_for(task, rng, Version(0, 0)))
        pipe.reset()
    assert sorted(asked) == list(range(len(held_out))) and not state.evals and not state.counters.evals_next


@pytest.mark.parametrize("now", [Questions(3), None], ids=["three", "none"])
def test_a_round_that_is_resumed_with_fewer_questions_ends(make_config, now):
    config, state = make_config(run={"steps": 2}), State(Counters(started=0.0))
    tx = Transaction(state, Keys("many"), redis.Redis().pipeline())
    (first, *_) = evaluation.tasks_due(config, state, tx, Questions(AT_ONCE + 2), MANY)
    assert state.counters.evals_next == {0: AT_ONCE} and first.number == 0
    assert evaluation.tasks_due(config, state, tx, now, MANY) == []
    assert state.counters.evals_done == [0]


async def test_a_stream_of_many_tasks_is_looked_through_in_pages(make_config, redis_url):
    client, state = client_of(redis_url), State(Counters(started=0.0))
    keys, watch = Keys("many"), Watch(client, Keys("many"))
    config = make_config(run={"steps": 2})
    async with client.pipeline(transaction=True) as pipe:
        tx = Transaction(state, keys, pipe)
        for task in evaluation.tasks_due(config, state, tx, Questions(2 * PAGE + 3), MANY):
            transitions._send(tx, task)
        await pipe.execute()
    lost: Any = await client.xrange(keys.tasks, count=PAGE + 1)
    await client.xdel(keys.tasks, lost[-1][0], lost[3][0])
    assert not await watch.look(state)
    assert await watch.look(state)
    assert [task.number for task in watch.vanished(state)] == [3, PAGE]
