"""`rollout_advantage` on what real actors made: against a slow literal version, its bound, and its distribution."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from services.replay.buffer import Buffer, StoredGroup
from services.replay.policies import Moment, get_policy
from services.replay.policies.rollout_advantage import EPSILON, EXPONENT, rollouts
from shared.advantages import group_advantages
from shared.config import build
from shared.messages import GroupHeader
from tests.replay.answered import Answered
from tests.replay.played import play
from tests.replay.recording import Recording
from tests.replay.test_service import check_the_run, run_to_the_end

STEPS = 200
MAX_AGE = 10  # steps, as published: written out here, so that another bound in the code is seen
CAPACITY = 400  # groups: more than eleven steps bring


@cache  # rewards repeat, and every step asks for those of all stored groups
def advantages_of(*rewards: float | None) -> np.ndarray:
    return group_advantages(rewards)


def literal_draw(stored: list[tuple[int, GroupHeader]], step: int, seed: int, n: int) -> list[tuple[str, int]]:
    """One rollout after the other: whose exponential clock rings first among those still there."""
    young = [header for born, header in stored if step - born <= MAX_AGE]
    rng = np.random.default_rng(seed)
    clocks = {}
    for header in young:
        advantages = np.abs(advantages_of(*header.rewards))
        for i, a in enumerate(advantages.tolist()):
            wait = rng.exponential()
            if a != 0 and header.sampled_tokens[i] > 0:
                clocks[header.id, i] = wait / (a + EPSILON) ** EXPONENT
    drawn = []
    while clocks and len(drawn) < n:
        first = min(clocks, key=lambda key: clocks[key])
        drawn.append(first)
        del clocks[first]
    return drawn


@pytest.mark.parametrize(
    "select",
    [
        pytest.param(3, id="few"),
        pytest.param(0, id="half", marks=pytest.mark.slow),
        pytest.param(40, id="more than there are", marks=pytest.mark.slow),
    ],
)
def test_200_steps_equal_a_literal_version_and_keep_the_bound(select: int):
    recording = Recording()
    replay = {"policy": "rollout_advantage", "select": select, "capacity": CAPACITY}
    config = build(
        {"learner": {"batch": recording.batch}, "replay": replay, "rollout": {"group_size": recording.group_size}}
    )
    n = config.replay_groups * recording.group_size
    stored: list[tuple[int, GroupHeader]] = []
    ages: Counter[int] = Counter()
    for seen in play(config, get_policy("rollout_advantage"), recording, STEPS):
        drawn = literal_draw(stored, seen.step, seen.seed, n)
        assert {id: part.rollouts for id, part in seen.batch.parts.items()} == {
            id: [i for other, i in drawn if other == id] for id, _ in drawn
        }
        assert seen.batch.replay == list(dict.fromkeys(id for id, _ in drawn))
        assert seen.batch.message.parts == seen.batch.parts and not seen.scanned

        born = {header.id: (step, header) for step, header in stored}
        usable = sum(np.count_nonzero(advantages_of(*h.rewards)) for step, h in stored if seen.step - step <= MAX_AGE)
        assert sum(len(part.rollouts) for part in seen.batch.parts.values()) == min(n, usable)
        assert seen.batch.stats["replay_rollouts"] == min(n, usable)
        for id, part in seen.batch.parts.items():
            step, header = born[id]
            assert 1 <= seen.step - step <= MAX_AGE
            assert part.advantages is None, "the frozen ones"
            assert len(set(part.rollouts)) == len(part.rollouts)
            assert all(header.signs[i] != 0 for i in part.rollouts)
            ages[seen.step - step] += 1

        stored += [(seen.step, h) for h in seen.fresh if any(h.signs)]
        newest = stored[-1][0]
        stored = [(step, h) for step, h in stored if newest + 1 - step <= MAX_AGE][-CAPACITY:]
        assert seen.after == [h.id for _, h in stored]
    assert len(stored) < CAPACITY, "age alone evicts"
    assert sum(ages.values()) > STEPS and max(ages) == MAX_AGE


def buffer_of(advantages: list[list[float]], step: int = 0) -> Buffer:
    return Buffer(
        StoredGroup(
            id=f"g{i}", sequence=i, step=step, headroom_ref=0.5, headroom=0.5, drift=0.0, uses=0, tokens=8, bytes=8,
            responses=a,
        )
        for i, a in enumerate(advantages)
    )  # fmt: skip


@pytest.mark.slow
def test_the_draw_follows_the_weights():
    buffer = buffer_of([[4.0, 0.0, 1.0], [-1.0, -0.25, 0.0]])
    first: Counter[tuple[str, int]] = Counter()
    second: Counter[tuple[str, int]] = Counter()
    draws = 20_000
    for seed in range(draws):
        first[next((id, which[0]) for id, which in rollouts(buffer, 1, Moment(1, seed)).items())] += 1
        two = [(id, i) for id, which in rollouts(buffer, 2, Moment(1, seed)).items() for i in which]
        second.update(two)
    weights = {("g0", 0): 2.0, ("g0", 2): 1.0, ("g1", 0): 1.0, ("g1", 1): 0.5}
    total = sum(weights.values())
    for key, weight in weights.items():
        p = weight / total
        assert first[key] / draws == pytest.approx(p, abs=4 * (p * (1 - p) / draws) ** 0.5)
        twice = p + sum(w / total * weight / (total - w) for other, w in weights.items() if other != key)
        assert second[key] / draws == pytest.approx(twice, abs=4 * (twice * (1 - twice) / draws) ** 0.5)


def test_equal_advantages_and_an_empty_buffer_are_no_trouble():
    assert rollouts(Buffer(), 8, Moment(1, 0)) == {}
    assert rollouts(buffer_of([[0.0, 0.0]]), 8, Moment(1, 0)) == {}
    everything = rollouts(buffer_of([[1.0, -1.0]] * 3), 8, Moment(10, 5))
    assert {id: sorted(which) for id, which in everything.items()} == {f"g{i}": [0, 1] for i in range(3)}
    assert rollouts(buffer_of([[1.0, -1.0]]), 8, Moment(MAX_AGE + 1, 5)) == {}


def test_rows_come_back_from_redis_with_their_advantages_and_old_ones_without():
    buffer = buffer_of([[1.5, -0.5, 0.0], []])
    assert buffer.row("g0").responses == [1.5, -0.5, 0.0]
    assert list(Buffer(buffer)) == list(buffer)
    assert buffer_of([[]]).row("g0").responses == []


async def test_a_run_with_crashes_trains_the_same_parts_again(make_config):
    config = make_config(run={"steps": 20}, replay={"policy": "rollout_advantage", "capacity": 40})
    state, learner, records = await run_to_the_end(config, crashes=6, learner_crashes=3, fail_share=0.05, seed=3)
    check_the_run(config, state, learner, records)
    batches = [batch for _, batch in learner.trained]
    n = config.replay_groups * config.rollout.group_size
    assert all(sum(len(p.rollouts) for p in batch.parts.values()) <= n for batch in batches)
    assert any(batch.parts for batch in batches) and all(set(batch.parts) == set(batch.replay) for batch in batches)
    for batch in batches:
        for id, part in batch.parts.items():
            assert all(learner.headers[id].signs[i] != 0 for i in part.rollouts)


def test_a_stored_group_that_the_learner_refused_is_not_drawn_again():
    recording = Recording()
    config = build(
        {
            "run": {"steps": 4},
            "learner": {"batch": recording.batch},
            "rollout": {"group_size": recording.group_size},
            "replay": {"policy": "rollout_advantage", "select": 40},
        }
    )
    run = Answered(config, recording, reject=lambda step, batch: batch.replay[:1])
    refused: set[str] = set()
    for seen in run.play(4):
        assert not refused & set(seen.batch.replay)
        refused |= set(seen.batch.replay[:1])
    assert len(refused) == 3 and run.state.counters.rejected == 3
