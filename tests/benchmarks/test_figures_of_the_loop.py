"""The benchmarks of the loop at tiny sizes: a real replay process and a real Redis, and numbers that are finite."""

import math

import pytest

from benchmarks import async_over_sync, bubble, hidden_scan
from benchmarks.figure import Figure
from benchmarks.load import WARM_UP, Load
from benchmarks.simulated import simulate

pytestmark = pytest.mark.slow
TINY = {"batch": 4, "slots": 2, "step_s": 0.02, "steps": 2, "repetitions": 1}


def check(figures: list[Figure]) -> None:
    for figure in figures:
        assert all(math.isfinite(value) for value in [*figure.ours, *figure.peer, *figure.ratios]), figure


def test_a_bubble_is_between_nothing_and_all_and_no_length_is_lost():
    figures = bubble.measure(**TINY, lags=(2,))
    check(figures)
    assert all(0 <= figure.ours[0] <= 100 for figure in figures if figure.unit == "%")
    assert [figure.name for figure in figures if figure.peer] == ["bubble, max_lag 2: length trained"]


def test_steps_are_timed_with_lag_and_without():
    check(async_over_sync.measure(**TINY))


def test_scans_and_step_times_of_the_arms_are_finite():
    figures = hidden_scan.measure(**TINY | {"steps": 3}, lags=(1,))
    check(figures)
    assert {figure.name.split(",")[0] for figure in figures} == {"hidden scan", "replay for fresh"}


def test_a_simulated_run_trains_each_task_once_and_replays_what_passes_the_gate():
    load = Load(batch=4, slots=2, steps=4, step_s=0.02, policy="headroom_drift", select=2, stored=12)
    seen = simulate(load)
    assert len(seen.trained) == len(set(seen.trained)) == 4 * load.steps
    assert set(seen.trained) <= set(seen.begun) and len(seen.step_s) == load.steps
    assert [event["step"] for event in seen.events] == list(range(WARM_UP, WARM_UP + load.steps))
    assert all(event["replay_groups"] <= 2 for event in seen.events) and seen.total("replay_groups") > 0
