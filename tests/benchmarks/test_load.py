"""The made load and its ideal schedule, against schedules that can be worked out by hand."""

import pytest

from benchmarks.load import Load, ideal

EVEN = Load(batch=4, slots=1, step_s=1.0, sigma=0.0, capacity=1.0, max_lag=0, steps=5)


def test_without_lag_the_learner_idles_while_a_batch_is_generated():
    idle, step_s = ideal(EVEN)
    assert idle == pytest.approx(0.5) and step_s == pytest.approx(2.0)


def test_with_lag_equal_parts_overlap():
    idle, step_s = ideal(Load(batch=4, slots=1, step_s=1.0, sigma=0.0, capacity=1.0, max_lag=1, steps=5))
    assert idle == pytest.approx(0.0, abs=1e-9) and step_s == pytest.approx(1.0)


def test_lengths_have_the_mean_one_and_a_bounded_tail():
    load = Load(batch=64, steps=20, longest=6.0)
    lengths = [load.length(n) for n in range((20 + 3 + 2) * 64)]
    assert sum(lengths) / len(lengths) == pytest.approx(1.0)
    assert 4 < max(lengths) < 7 and min(lengths) > 0
