"""Each simple policy on what real actors made: against a slow literal version, and against the bound it states."""

import importlib
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from services.replay.buffer import Buffer, StoredGroup
from services.replay.policies import Moment, get_policy, names
from services.replay.rules import nothing
from shared.config import build
from shared.contradictions import KEEP_NOTHING, UNGATED
from tests.replay import literal
from tests.replay.literal import Stored
from tests.replay.played import Played, play
from tests.replay.recording import Recording

STEPS = 200
TIED = (1, 2)  # decimals of Headroom and Drift: most scores have equals


def settings(name: str, recording: Recording, unit: int = 1):
    replay = {"policy": name, "select": 0, "tau": 0.03, "capacity": 48, "unit": unit, "scan_chunk": 5}
    return build(
        {"learner": {"batch": recording.batch}, "replay": replay, "rollout": {"group_size": recording.group_size}}
    )


def policy_file(name: str) -> str:
    """What a policy's module says of itself."""
    return importlib.import_module(f"services.replay.policies.{name}").__doc__ or ""


def within_the_gate(seen: Played, recording: Recording) -> None:
    assert all(recording.scanned(id, seen.step).drift <= seen.selection.tau for id in seen.batch.replay)


def nobody_passed_over(seen: Played, score: Callable[[str], float]) -> None:
    """No group that was not even scanned has a better score than a replayed one."""
    unscanned = [row.id for row in seen.before if row.id not in seen.scanned]
    if seen.batch.replay and unscanned:
        assert max(map(score, unscanned)) <= min(map(score, seen.selection.accepted))


def full(seen: Played) -> None:
    """As many as were wanted or are there, but for the cut to whole units."""
    assert seen.selection.accepted[: len(seen.batch.replay)] == seen.batch.replay
    assert len(seen.selection.accepted) == min(seen.selection.wanted, len(seen.before))


def bound_none(seen: Played, recording: Recording) -> None:
    assert not seen.batch.replay and not seen.after


def bound_naive(seen: Played, recording: Recording) -> None:
    full(seen)
    order = [row.id for row in seen.before]
    assert set(seen.batch.replay) == set(order[len(order) - len(seen.batch.replay) :])
    if sum(row.step == seen.step - 1 for row in seen.before) >= seen.selection.wanted:
        assert all(row.step == seen.step - 1 for row in seen.before if row.id in seen.batch.replay)


def bound_uniform(seen: Played, recording: Recording) -> None:
    full(seen)
    assert len(set(seen.batch.replay)) == len(seen.batch.replay)


def bound_headroom_drift(seen: Played, recording: Recording) -> None:
    within_the_gate(seen, recording)
    cached = {row.id: row.headroom for row in seen.before}
    nobody_passed_over(seen, cached.__getitem__)
    if recording.exact:  # rounding the two scores apart from each other breaks what holds between them
        frozen = {row.id: row.headroom_ref for row in seen.before}
        for id in seen.batch.replay:
            assert abs(recording.scanned(id, seen.step).headroom - frozen[id]) <= seen.selection.tau**0.5


def bound_headroom_only(seen: Played, recording: Recording) -> None:
    full(seen)
    cached = {row.id: row.headroom for row in seen.before}
    nobody_passed_over(seen, cached.__getitem__)


def bound_drift_only(seen: Played, recording: Recording) -> None:
    within_the_gate(seen, recording)
    sequence = {row.id: row.sequence for row in seen.before}
    accepted = seen.selection.accepted
    for row in seen.before:
        if row.id not in accepted and any(sequence[id] < row.sequence for id in accepted):
            assert recording.scanned(row.id, seen.step).drift > seen.selection.tau


def bound_fail_rate(seen: Played, recording: Recording) -> None:
    within_the_gate(seen, recording)
    wrong = {row.id: (row.scored - row.right) / row.scored for row in seen.before}
    nobody_passed_over(seen, wrong.__getitem__)


def bound_variance(seen: Played, recording: Recording) -> None:
    within_the_gate(seen, recording)
    variance = {row.id: row.right * (row.scored - row.right) / row.scored**2 for row in seen.before}
    nobody_passed_over(seen, variance.__getitem__)


def bound_trl_buffer(seen: Played, recording: Recording) -> None:
    without_spread = [h for h in seen.fresh if len(set(h.scored)) == 1]
    assert len(seen.batch.replay) <= min(len(without_spread), len(seen.before))
    assert len(seen.batch.replay) + len(seen.batch.fresh) == len(seen.fresh), "a batch is b groups, always"
    score = {row.id: row.advantage * row.reward_std for row in seen.before}
    assert all(score[id] > 0 for id in seen.batch.replay)
    gone, kept = score.keys() - set(seen.after), score.keys() & set(seen.after)
    if gone and kept:
        assert max(score[id] for id in gone) <= min(score[id] for id in kept)


BOUNDS = {name.removeprefix("bound_"): f for name, f in list(globals().items()) if name.startswith("bound_")}


SCORES = [
    pytest.param(TIED, 4, id="ties, units of 4"),
    pytest.param(None, 1, id="as measured", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("decimals", "unit"), SCORES)
@pytest.mark.parametrize("name", literal.ORDERS)
def test_a_policy_equals_its_literal_version_and_keeps_its_bound(name: str, decimals: tuple[int, int], unit: int):
    recording = Recording(decimals=decimals)
    config = settings(name, recording, unit)
    K = recording.batch if name == "trl_buffer" else config.replay_groups
    stored: list[Stored] = []
    replayed = 0
    for seen in play(config, get_policy(name), recording, STEPS):
        assert [row.id for row in seen.before] == [g.id for g in stored]
        measure = partial(recording.scanned, step=seen.step)
        accepted, measured = literal.choose(name, stored, K, config.replay.tau, seen.seed, measure)
        replay, left_out = literal.compose(name, accepted, seen.fresh, unit)
        assert seen.batch.replay == replay
        assert seen.scanned == list(measured)
        assert seen.batch.left_out == left_out
        assert seen.batch.fresh == [h.id for h in seen.fresh if h.id not in left_out]
        for group in stored:
            if group.id in measured:
                group.headroom = measured[group.id].headroom
        new = [Stored(h, seen.step, recording.trained(h.id).headroom) for h in seen.fresh if h.id not in left_out]
        stored = literal.append(name, stored, new, config.replay.capacity)
        assert seen.after == [g.id for g in stored]
        BOUNDS[name](seen, recording)
        assert all(row.step < seen.step for row in seen.before) and len(seen.after) <= config.replay.capacity
        replayed += len(replay)
    assert replayed > STEPS or name == "none", "the recording must give the policy something to choose from"


def test_every_policy_states_its_name_and_its_bound():
    for name in names():
        assert get_policy(name).name == name
        assert "Bound:" in policy_file(name), f"{name}.py does not say what it guarantees"
        assert "Source:" in policy_file(name), f"{name}.py does not say where its rule comes from"


def test_the_settings_know_which_policies_store_nothing():
    assert {name for name in names() if get_policy(name).keeps is nothing} == set(KEEP_NOTHING)
    assert {name for name in names() if not get_policy(name).gated} == set(UNGATED)


@pytest.mark.parametrize("name", names())
def test_an_order_is_extended_by_a_larger_n_repeats_itself_and_changes_nothing(name: str):
    recording = Recording(decimals=TIED)
    order = get_policy(name).order
    for seen in play(settings("headroom_drift", recording), get_policy("headroom_drift"), recording, 20):
        buffer = Buffer(seen.before)
        asked = frozenset(row.prompt for row in seen.before[::3])
        moment = Moment(seen.step, seen.seed, asked=asked)
        whole = buffer.ids(order(buffer, len(buffer) + 5, moment))
        assert len(set(whole)) == len(whole) and set(whole) <= {row.id for row in seen.before}
        for n in (0, 1, 2, 7, len(buffer)):
            assert buffer.ids(order(buffer, n, moment)) == whole[:n]
        assert [replace(row, drift=0.0) for row in buffer] == [replace(row, drift=0.0) for row in Buffer(seen.before)]


def test_trl_buffer_draws_first_in_proportion_to_the_scores():
    rows = [
        StoredGroup(
            id=f"g{i}", sequence=i, step=0, headroom_ref=0.5, headroom=0.5, drift=0.0, uses=0, tokens=9, bytes=9,
            advantage=float(i), reward_std=0.5,
        )
        for i in (1, 2, 3, 4)
    ]  # fmt: skip
    buffer, first = Buffer(rows), Counter()
    for seed in range(4000):
        first.update(buffer.ids(get_policy("trl_buffer").order(buffer, 1, Moment(1, seed))))
    for i in (1, 2, 3, 4):
        share = i / 10
        assert abs(first[f"g{i}"] - 4000 * share) < 4 * (4000 * share * (1 - share)) ** 0.5
