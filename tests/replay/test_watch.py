"""Warnings that come once, when there is reason."""

import asyncio

from services.replay.records import Counters
from services.replay.state import State
from services.replay.watch import ALIKE_STEPS, CLOGGED_STEPS, LONG_WAIT_S, SHUT_SCANS, SHUT_STEPS, Watch
from shared.config import build
from shared.gpu_lease import mark_of
from shared.heard import Heard
from shared.learner_mark import LearnerMark
from shared.only_one import SILENT_S, OnlyOne
from shared.streams import Keys
from shared.waiting import START_S
from tests.replay.peers import client_of


def stats(acceptance: float | None, age: float | None, scanned: int = 10) -> dict:
    scan = {"scanned": scanned, "acceptance": acceptance, "scanned_age_mean": age}
    scan |= {"accepted": round((acceptance or 0) * scanned), "tau": 0.01, "scanned_drift_median": 0.034}
    return scan | {"mixed_groups": 3, "spread_groups": 3, "replay_groups": 0, "correct_share": 0.5}


def watch(now: list[float] | None = None) -> Watch:
    clock = now or [0.0]
    return Watch(None, Keys("r"), lambda: clock[0])  # type: ignore[arg-type]  nothing here asks Redis


def test_a_clogged_order_is_named_once():
    w = watch()
    for _ in range(3 * CLOGGED_STEPS):
        w.batch(stats(0.05, 20.0, scanned=20), capacity=512)
    (text,) = w.warnings()
    assert "replay.capacity = 512" in text and "20 steps old" in text
    assert w.warnings() == []


def test_young_groups_low_acceptance_for_a_step_or_no_scan_are_no_reason():
    w = watch()
    for i in range(4 * CLOGGED_STEPS):
        w.batch(stats(0.05, 2.0, scanned=20), capacity=512)
        w.batch(stats(None, None, scanned=0), capacity=512)
        w.batch(stats(0.05 if i % 2 else 0.5, 20.0), capacity=512)
    assert w.warnings() == []


def test_a_gate_that_lets_no_young_group_through_is_named_once_with_a_tau_that_would():
    w = watch()
    for _ in range(SHUT_STEPS - 1):
        w.batch(stats(0.0, 2.0), capacity=512)
    assert w.warnings() == []
    w.batch(stats(0.0, 2.0), capacity=512)
    (text,) = w.warnings()
    assert "none of 50 scanned groups passed the gate" in text and "Drift is 0.034 at 2 steps of age" in text
    assert "tau is 0.01: replay.tau = 0.034 lets half of them through" in text
    for _ in range(2 * CLOGGED_STEPS):
        w.batch(stats(0.0, 20.0), capacity=512)  # they grow old behind the same gate
    assert w.warnings() == []
    for _ in range(2 * SHUT_STEPS):
        w.batch(stats(0.5, 2.0), capacity=512)
        for _ in range(SHUT_STEPS):
            w.batch(stats(0.0, 2.0), capacity=512)
    assert w.warnings() == [], "once in a run"
    for _ in range(CLOGGED_STEPS):
        w.batch(stats(0.05, 20.0, scanned=20), capacity=512)
    assert "replay.capacity = 512" in w.warnings()[0], "groups passed in between, so this is another reason"


def test_no_gate_few_scans_a_group_that_passed_or_a_gate_that_opens_by_itself_are_no_reason():
    w = watch()
    for _ in range(4 * SHUT_STEPS):
        w.batch(stats(0.0, 2.0), capacity=512, gated=False)
    for i in range(4 * SHUT_STEPS):
        w.batch(stats(0.0, 2.0) | {"tau": 0.01 * 1.3**i}, capacity=512)
    for i in range(4 * SHUT_STEPS):
        w.batch(stats(0.0 if i % SHUT_STEPS else 0.1, 2.0), capacity=512)
    w.batch(stats(0.1, 2.0), capacity=512)
    for _ in range(SHUT_SCANS - 1):
        w.batch(stats(0.0, 2.0, scanned=1), capacity=512)
    assert w.warnings() == []
    w.batch(stats(0.0, 2.0, scanned=1), capacity=512)
    assert len(w.warnings()) == 1


def test_a_long_wait_is_named_by_what_it_waits_for():
    now = [0.0]
    w = watch(now)
    w.waits_for("the learner to train step 3", False)
    now[0] = 50.0
    w.waits_for("the learner to train step 3", False)
    assert w.waiting() == ("the learner to train step 3", 50.0)
    w.waits_for("the learner to train step 3", True)
    assert w.waiting() == ("the learner to train step 3", 0.0), "groups for the steps behind it come in"
    now[0] = 60.0
    w.waits_for("fresh groups for step 4", False)
    assert w.waiting() == ("fresh groups for step 4", 0.0)


async def test_a_wait_that_is_too_long_is_told_once_and_again_when_something_else_is_waited_for(redis_url):
    now = [0.0]
    w = Watch(client_of(redis_url), Keys("r"), lambda: now[0])
    w.learner = Heard("learner", lambda: 0.0)  # nobody misses it here
    state = State(Counters(started=0.0))
    w.trained(2, 5.0)
    w.waits_for("the learner to train step 3", False)
    now[0] = LONG_WAIT_S - 1
    assert not await w.look(state)
    now[0] = LONG_WAIT_S + 1
    assert await w.look(state)
    assert w.warnings() == ["nothing has happened for 61 s; waiting for the learner to train step 3."]
    now[0] = 10 * LONG_WAIT_S
    assert not await w.look(state)
    w.waits_for("fresh groups for step 4", False)
    assert not await w.look(state)
    now[0] += LONG_WAIT_S + 1
    assert await w.look(state)
    assert "fresh groups for step 4" in w.warnings()[0]


async def test_a_step_that_takes_as_long_as_those_before_is_no_reason(redis_url):
    now = [0.0]
    w = Watch(client_of(redis_url), Keys("r"), lambda: now[0])
    w.learner = Heard("learner", lambda: 0.0)  # nobody misses it here
    state = State(Counters(started=0.0))
    for step in range(3):
        w.waits_for(f"the learner to train step {step}", False)
        now[0] += 160.0
        assert not await w.look(state)
        w.trained(step, 160.0)
    w.waits_for("the learner to train step 3", False)
    now[0] += 321.0
    assert await w.look(state), "twice as long"


async def test_services_that_still_load_their_models_are_no_reason(redis_url):
    now = [0.0]
    w = Watch(client_of(redis_url), Keys("r"), lambda: now[0])
    w.learner = Heard("learner", lambda: 0.0)  # nobody misses it here
    state = State(Counters(started=0.0))
    w.waits_for("the learner to come up", False)
    now[0] = START_S - 1
    assert not await w.look(state)
    now[0] = START_S + 1
    assert await w.look(state)


def test_groups_whose_rollouts_are_all_alike_are_named_once():
    w = watch()
    alike = stats(None, None, scanned=0) | {"mixed_groups": 0, "spread_groups": 0, "correct_share": 0.0}
    for _ in range(3):
        for _ in range(ALIKE_STEPS - 1):
            w.batch(alike, capacity=512)
        w.batch(alike | {"replay_groups": 1}, capacity=512)  # something to learn from was replayed
        w.batch(alike | {"mixed_groups": 1}, capacity=512)
    assert w.warnings() == []
    for _ in range(2 * ALIKE_STEPS):
        w.batch(alike, capacity=512)
    (text,) = w.warnings()
    assert "for 5 steps no group had both right and wrong rollouts (0% are right)" in text
    assert "there was nothing to learn and nothing to replay" in text


def test_groups_whose_graded_rewards_differ_are_learned_from_and_only_not_replayed():
    graded = stats(None, None, scanned=0) | {"mixed_groups": 0, "spread_groups": 2, "correct_share": 0.0}
    w = watch()
    for _ in range(2 * ALIKE_STEPS):
        w.batch(graded, capacity=512)
    (text,) = w.warnings()
    assert "there is nothing to replay" in text and "nothing to learn" not in text
    for _ in range(2 * ALIKE_STEPS):
        w.batch(graded, capacity=512, stores_mixed=False)
    assert w.warnings() == [], "a policy that stores none of them misses none"


async def test_a_learner_that_is_gone_is_told_of_unless_the_run_has_finished(redis_url):
    now = [1000.0]
    w = Watch(client_of(redis_url), Keys("r"), lambda: now[0])
    state = State(Counters(started=0.0))
    learner = OnlyOne(build({"run": {"name": "r"}, "redis": {"url": redis_url}}), "learner")
    assert learner.try_begin()
    async with asyncio.timeout(20):
        while not await connected(w):
            await asyncio.sleep(0.05)
        assert not await w.look(state) and w.learner.silent_s == 0
        learner.leave()
        while await connected(w):
            await asyncio.sleep(0.05)
    now[0] += SILENT_S
    assert await w.look(state)
    assert w.warnings()[0].startswith("the learner has stopped reporting (hung, stopped, cut off or ended)")
    assert w.learner.silent_s >= SILENT_S
    state.counters.finished = True
    assert not await w.look(state) and w.learner.silent_s == 0


async def test_a_learner_that_torchrun_started_is_missed_only_when_its_mark_has_gone(redis_url):
    now = [1000.0]
    config = build({"run": {"name": "r"}, "redis": {"url": redis_url}})
    w = Watch(client_of(redis_url), Keys("r"), lambda: now[0])
    state = State(Counters(started=0.0))
    mark = mark_of("r")
    with LearnerMark(config):
        async with asyncio.timeout(20):
            while not await w.client.exists(mark):
                await asyncio.sleep(0.05)
        for _ in range(3):
            now[0] += START_S
            assert not await w.look(state) and w.learner.silent_s == 0
    now[0] += START_S
    assert await w.look(state) and w.learner.silent_s == START_S
    assert w.warnings()[0].startswith("the learner has stopped reporting")


async def connected(w: Watch) -> bool:
    return any(c["name"].startswith("headrace:r:learner:") for c in await w.client.client_list())
