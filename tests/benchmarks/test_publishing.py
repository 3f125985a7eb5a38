"""The played way of a version to the actors, against schedules that can be worked out by hand."""

import pytest

from benchmarks.load import Load
from benchmarks.publishing import step_s

TRAIN, SCAN, WAY = 1.5, 0.5 / 0.4 / 3, 0.2


def played(max_lag: int, capacity: float) -> tuple[float, float, float]:
    """Step times of equal groups: told at once, told first, without any way."""
    load = Load(batch=4, slots=1, sigma=0.0, capacity=capacity, max_lag=max_lag, steps=5)
    return step_s(load, WAY), step_s(load, WAY, told_first=True), step_s(load, 0.0)


def test_where_generation_waits_for_the_weights_only_a_shorter_way_helps():
    generate = 1.0
    assert played(0, 1.0) == pytest.approx((WAY + generate + TRAIN, WAY + generate + TRAIN, generate + TRAIN))


def test_a_learner_that_waits_for_nothing_else_scans_beside_the_way():
    assert played(1, 4.0) == pytest.approx((WAY + SCAN + TRAIN, SCAN + TRAIN, SCAN + TRAIN))
