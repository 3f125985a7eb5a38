"""Admission: enough tasks to keep the learner busy, never so many that a group comes too late."""

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from services.replay.admission import Fresh, choose_fresh, tasks_to_issue


def run_system(
    batch: int,
    max_lag: int,
    steps: int,
    durations: list[float],
    failures: set[int],
    dropped: frozenset[int] | set[int] = frozenset(),
) -> list[list[tuple]]:
    """An event-driven simulation: tasks take `durations` (cyclic), a task in `failures` fails once, a group in
    `dropped` is dropped on arrival. Returns, per step, (number, version it was issued under) of its groups. Asserts
    that it never stalls."""
    version, issued, clock, place = 0, 0, 0.0, 0
    running: list[tuple[float, int, int, int]] = []  # end, number, version, attempt
    arrived: list[tuple[Fresh, int]] = []
    trained: list[list[tuple]] = []

    def start(number: int, attempt: int) -> None:
        nonlocal place
        heapq.heappush(running, (clock + durations[place % len(durations)], number, version, attempt))
        place += 1

    while version < steps:
        for _ in range(tasks_to_issue(len(running) + len(arrived), version, batch, max_lag, steps)):
            start(issued, 0)
            issued += 1
        chosen = choose_fresh([f for f, _ in arrived], [v + max_lag for _, _, v, _ in running], version, batch)
        if chosen is not None:
            ids = {fresh.id for fresh in chosen}
            trained.append([(f.number, v) for f, v in arrived if f.id in ids])
            arrived = [(f, v) for f, v in arrived if f.id not in ids]
            version += 1
            continue
        assert running, f"stalled at step {version} with {len(arrived)} groups"
        clock, number, started, attempt = heapq.heappop(running)
        if number in failures and attempt == 0:
            start(number, 1)
        elif number not in dropped:
            arrived.append((Fresh(started + max_lag, number, f"g{number}"), started))
    return trained


@settings(max_examples=300, deadline=None)
@given(
    batch=st.integers(1, 6),
    max_lag=st.integers(0, 4),
    durations=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=40),
    failures=st.sets(st.integers(0, 60), max_size=10),
)
def test_no_group_is_trained_beyond_max_lag_and_none_is_skipped(batch, max_lag, durations, failures):
    trained = run_system(batch, max_lag, steps=12, durations=durations, failures=failures)
    for step, groups in enumerate(trained):
        assert len(groups) == batch
        assert all(0 <= step - version <= max_lag for _, version in groups)
    numbers = [number for groups in trained for number, _ in groups]
    assert sorted(numbers) == list(range(12 * batch))


@settings(max_examples=300, deadline=None)
@given(
    batch=st.integers(1, 6),
    max_lag=st.integers(0, 4),
    durations=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=40),
    failures=st.sets(st.integers(0, 100), max_size=10),
    dropped=st.sets(st.integers(0, 200), max_size=120),
)
def test_groups_dropped_on_arrival_are_replaced_within_the_same_bound(batch, max_lag, durations, failures, dropped):
    trained = run_system(batch, max_lag, 12, durations, failures, dropped)
    for step, groups in enumerate(trained):
        assert len(groups) == batch
        assert all(0 <= step - version <= max_lag for _, version in groups)
    numbers = [number for groups in trained for number, _ in groups]
    assert sorted(numbers) == [n for n in range(max(numbers) + 1) if n not in dropped][: len(numbers)]


def test_max_lag_zero_is_the_synchronous_loop():
    assert tasks_to_issue(untrained=0, version=0, batch=8, max_lag=0, steps=100) == 8
    assert tasks_to_issue(untrained=8, version=0, batch=8, max_lag=0, steps=100) == 0
    assert tasks_to_issue(untrained=0, version=1, batch=8, max_lag=0, steps=100) == 8


def test_nothing_is_generated_that_no_step_will_train():
    assert tasks_to_issue(untrained=0, version=9, batch=10, max_lag=2, steps=10) == 10
    assert tasks_to_issue(untrained=10, version=9, batch=10, max_lag=2, steps=10) == 0


def test_another_batch_size_takes_effect_with_what_is_open():
    assert tasks_to_issue(untrained=16, version=50, batch=4, max_lag=1, steps=100) == 0
    assert tasks_to_issue(untrained=4, version=50, batch=4, max_lag=1, steps=100) == 4
    assert tasks_to_issue(untrained=4, version=50, batch=16, max_lag=0, steps=100) == 12


def test_a_straggler_that_is_due_is_waited_for():
    ready = [Fresh(2, n, f"g{n}") for n in (4, 5)]
    assert choose_fresh(ready, running=[1], step=1, batch=2) is None
    assert choose_fresh([*ready, Fresh(1, 3, "g3")], running=[], step=1, batch=2) == [Fresh(1, 3, "g3"), ready[0]]


def test_a_straggler_with_slack_is_not_waited_for():
    ready = [Fresh(1, n, f"g{n}") for n in (1, 2)]
    assert choose_fresh(ready, running=[1], step=0, batch=2) == ready
