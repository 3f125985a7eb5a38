"""`bapo` on what real actors made: against a slow literal version, its bound, and in the running service."""

import random
from collections import Counter

import msgspec
import pytest
import redis

from services.replay import again, resync, transitions
from services.replay.policies import get_policy
from services.replay.state import Transaction
from shared.config import build
from shared.messages import AGAIN, TRAIN, GroupHeader, Hello
from shared.prompts import order as data_order
from shared.streams import Keys
from shared.versions import Version
from tests.replay.answered import QUESTIONS, Answered
from tests.replay.peers import Questions, header_for
from tests.replay.recording import Recording
from tests.replay.test_service import check_the_run, run_to_the_end

STEPS = 200


def settings(recording: Recording, steps: int = STEPS, **replay):
    return build(
        {
            "run": {"steps": steps},
            "learner": {"batch": recording.batch},
            "rollout": {"group_size": recording.group_size},
            "replay": {"policy": "bapo", "capacity": 48, "ask_again_every": 5} | replay,
        }
    )


def mean(header: GroupHeader) -> float:
    return sum(header.scored) / len(header.scored)


def solvable(header: GroupHeader) -> bool:
    n = len(header.scored)
    return 1 / n - 1e-9 <= mean(header) <= (n - 1) / n + 1e-9


def hear(hard: dict[int, tuple[int, int]], question: int, header: GroupHeader, step: int, capacity: int) -> None:
    if mean(header) > 1 / len(header.scored) + 1e-9:
        hard.pop(question, None)
        return
    hard[question] = (hard[question][0] if question in hard else -1, step)
    if len(hard) > capacity:
        del hard[min((heard, question) for question, (_, heard) in hard.items())[1]]


@pytest.mark.parametrize(
    "replay",
    [
        {},
        pytest.param({"select": 3, "ask_again_every": 1}, marks=pytest.mark.slow),
        pytest.param({"capacity": 8}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_200_steps_equal_a_literal_version(replay: dict):
    recording = Recording()
    config = settings(recording, **replay)
    b, r, m, capacity = recording.batch, config.replay_groups, config.replay.ask_again_every, config.replay.capacity
    run = Answered(config, recording, seed=3)
    stored: list[tuple[int, str]] = []
    hard: dict[int, tuple[int, int]] = {}  # question -> (asked at, heard of at)
    number = regenerated = joined = 0
    for seen in run.play(STEPS):
        s, headers = seen.step, run.headers

        again = sorted(hard, key=lambda q: (*hard[q], q))[:r] if s and s % m == 0 else []
        for question in again:
            hard[question] = (s, hard[question][1])
        asked = [(t.kind, t.number) for t in seen.asked]
        assert asked == [(AGAIN, q) for q in again] + [(TRAIN, n) for n in range(number, number + b)]
        assert all((t.group_size, t.min_version) == (recording.group_size, s) for t in seen.asked)

        fresh = [f"t{n:08d}" for n in range(number, number + b)]
        number += b
        regenerated += len(again)
        answers = {q: f"a{s:08d}-{q:08d}" for q in again}
        for question, id in answers.items():
            hear(hard, question, headers[id], s, capacity)
        on_top = [answers[q] for q in sorted(again) if solvable(headers[answers[q]])]
        joined += len(on_top)
        chosen = [id for step, id in reversed(stored) if s - step <= 3][:r]
        assert seen.batch.fresh == [id for id in fresh if solvable(headers[id])] + on_top
        assert seen.batch.left_out == [id for id in fresh if not solvable(headers[id])]
        assert seen.batch.replay == chosen and not seen.batch.parts and not seen.scanned

        stored += [(s, id) for id in seen.batch.fresh if 0.25 <= mean(headers[id]) <= 0.75]
        if stored:
            stored = [(step, id) for step, id in stored if stored[-1][0] + 1 - step <= 3][-capacity:]
        assert seen.after == [id for _, id in stored]
        for id in [*seen.batch.fresh, *seen.batch.left_out]:
            if headers[id].kind == TRAIN:
                hear(hard, data_order(config.run.seed, QUESTIONS, headers[id].number), headers[id], s, capacity)
        assert {k.question: (k.asked, k.step) for k in run.state.kept.values()} == hard

        ages = [s - row.step for row in seen.before if row.id in seen.batch.replay]
        assert all(1 <= age <= 3 for age in ages), "the bound"
        assert all(0.25 <= mean(headers[id]) <= 0.75 for id in seen.batch.replay)
        assert all(solvable(headers[id]) for id in seen.batch.fresh)
    c = run.state.counters
    assert (c.regenerated, c.issued, c.refilled) == (regenerated, STEPS * b, 0)
    assert c.generated == STEPS * b + regenerated == c.trained + c.filtered
    assert joined > 20, "the recording must have hard prompts that become solvable"


@pytest.mark.parametrize(
    ("max_lag", "crashes", "learner_crashes"), [(1, 6, 3), (3, 0, 0), pytest.param(0, 6, 0, marks=pytest.mark.slow)]
)
async def test_a_run_with_crashes_asks_every_round_once_and_keeps_the_lag(
    make_config, max_lag, crashes, learner_crashes
):
    config = make_config(
        run={"steps": 20}, replay={"policy": "bapo", "max_lag": max_lag, "ask_again_every": 3, "select": 3}
    )
    state, learner, records = await run_to_the_end(
        config, crashes=crashes, learner_crashes=learner_crashes, fail_share=0.1, seed=max_lag
    )
    steps = [r for r in records if r["kind"] == "step"]
    assert [r["step"] for r in steps] == list(range(20))
    assert all(r["lag_max"] <= max_lag for r in steps)
    last = {batch.step: batch for _, batch in learner.trained}
    for _, batch in learner.trained:
        assert last[batch.step] == batch, "a step trained again has the same batch"
    fresh = [id for step in range(20) for id in last[step].fresh]
    assert max(Counter(fresh).values()) == 1
    rounds = Counter(id.split("-")[0] for id in learner.headers if id.startswith("a"))
    assert rounds and all(int(name[1:]) % 3 == 0 and count <= 3 for name, count in rounds.items())
    c = state.counters
    assert c.regenerated == rounds.total() and c.lost == c.trained_twice == 0
    assert c.generated == 20 * config.learner.batch + c.regenerated == c.trained + c.filtered
    assert not state.tasks and not state.fresh
    assert steps[-1]["groups_regenerated"] == c.regenerated


def test_a_failed_task_is_not_asked_again_when_no_step_would_take_its_group():
    recording, steps = Recording(), 80
    config = settings(recording, steps, ask_again_every=1, select=1, max_lag=1)
    run = Answered(config, recording)
    for seen in run.play(steps - 2):
        assert seen.step < steps
    state, pipe = run.state, redis.Redis().pipeline()  # connects to nothing
    tx, policy = Transaction(state, Keys("answered"), pipe), get_policy("bapo")
    state.counters.step = steps - 2
    transitions.issue_tasks(config, state, tx, policy, Questions(QUESTIONS))
    [task] = [task for task in state.tasks.values() if task.kind == AGAIN]

    def fails(attempt: int) -> None:
        header = header_for(task, random.Random(0), Version(0, task.min_version), failed=True)
        transitions.group_arrived(config, state, tx, policy, msgspec.structs.replace(header, attempt=attempt))

    fails(0)
    assert state.tasks[task.id].attempt == 1, "the last step is still to come"
    state.counters.step = steps - 1
    fails(1)
    assert task.id not in state.tasks and state.counters.lost == 0
    pipe.reset()


def test_a_learner_that_is_ahead_voids_what_was_asked_again():
    recording = Recording()
    config = settings(recording, ask_again_every=1, select=2)
    run = Answered(config, recording)
    for seen in run.play(6):
        assert seen.batch.fresh
    state, pipe = run.state, redis.Redis().pipeline()  # connects to nothing
    tx, policy = Transaction(state, Keys("answered"), pipe), get_policy("bapo")
    transitions.issue_tasks(config, state, tx, policy, Questions(QUESTIONS))
    here, running = [task for task in state.tasks.values() if task.kind == AGAIN]
    header = header_for(here, random.Random(0), Version(0, here.min_version))
    false = [False] * (here.group_size - 1)
    header = msgspec.structs.replace(
        header, correct=[True, *false], rewards=[1.0, *map(float, false)], fingerprints=state.counters.fingerprints
    )
    transitions.group_arrived(config, state, tx, policy, header)
    assert here.id in state.fresh and running.id in state.tasks
    resync.learner_said_hello(config, state, tx, Questions(QUESTIONS), Hello(version=Version(1, 9)))
    assert here.id in state.retired and here.id not in state.fresh and running.id not in state.tasks
    assert state.kept, "the prompts are still known"
    assert again.for_step(config, state) == []
    pipe.reset()


async def test_the_default_policy_asks_nothing_again(make_config):
    config = make_config(run={"steps": 12})
    state, learner, records = await run_to_the_end(config)
    check_the_run(config, state, learner, records)
    assert not state.kept and state.counters.regenerated == 0
