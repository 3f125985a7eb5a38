"""Intervals over a handful of seeds."""

import math
import random

import numpy as np
import pytest

from cli.compare.intervals import Interval, difference, mean_of, ratio, t_inside, t_quantile, verdict
from cli.compare.tables import FEW

# two-sided 95 % and 99 % points of Student's t, as every table prints them
TABLE = {1: (12.706, 63.657), 2: (4.303, 9.925), 3: (3.182, 5.841), 4: (2.776, 4.604), 9: (2.262, 3.250)}


@pytest.mark.parametrize("degrees", TABLE)
def test_quantiles_are_those_of_the_tables(degrees):
    assert t_quantile(degrees, 0.95) == pytest.approx(TABLE[degrees][0], abs=6e-4)
    assert t_quantile(degrees, 0.99) == pytest.approx(TABLE[degrees][1], abs=6e-4)


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 8, 21])
def test_the_distribution_is_the_integral_of_its_density(degrees):
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    n, t = 20_000, 1.7
    points = (-t + 2 * t * (i + 0.5) / n for i in range(n))
    area = sum(math.exp(log_scale - (degrees + 1) / 2 * math.log1p(x * x / degrees)) for x in points) * 2 * t / n
    assert t_inside(t, degrees) == pytest.approx(area, rel=1e-6)


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None and interval.low is not None and interval.high is not None
    return interval.low, interval.high


def test_an_interval_covers_the_truth_as_often_as_it_says():
    draw, covered, tries = random.Random(1), 0, 4000
    for _ in range(tries):
        low, high = ends(mean_of([draw.gauss(2.0, 0.7) for _ in range(3)]))
        covered += low <= 2.0 <= high
    assert covered / tries == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("n", "one_in"), [(2, 13), (3, 100)])
def test_with_few_seeds_the_spread_is_far_too_small_as_often_as_the_report_says(n: int, one_in: int):
    spread = np.random.default_rng(n).standard_normal((1000 * one_in, n)).std(axis=1, ddof=1)
    assert f"one study of {one_in}" in FEW or f"one of {one_in}." in FEW
    assert 1 / (spread < 0.1).mean() == pytest.approx(one_in, rel=0.12)


def test_pairing_takes_away_what_is_hard_about_a_seed():
    a = {seed: 10.0 * seed + 1.0 + 0.01 * seed for seed in range(4)}
    b = {seed: 10.0 * seed for seed in range(4)}
    paired = difference(a, b)
    low, high = ends(paired)
    assert low > 0.9 and high < 1.2
    assert verdict(paired, 0.0) == "higher"


def test_only_seeds_that_both_have_are_compared():
    assert difference({0: 1.0, 1: 2.0}, {1: 1.5, 2: 9.0}).value == 0.5
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_a_ratio_is_geometric_and_its_interval_positive():
    both = ratio({0: 2.0, 1: 8.0}, {0: 1.0, 1: 2.0})
    assert both.value == pytest.approx(math.sqrt(8))
    low, high = ends(both)
    assert 0 < low < both.value < high
    back = ratio({0: 1.0, 1: 2.0}, {0: 2.0, 1: 8.0})
    assert ends(back) == pytest.approx((1 / high, 1 / low))
    assert ratio({0: 0.0}, {0: 1.0}) is None


def test_what_cannot_be_told_from_nothing_is_called_noise():
    assert verdict(difference({0: 1.0, 1: 1.2}, {0: 1.1, 1: 1.0}), 0.0) == "inside the noise"
    assert verdict(difference({0: 1.0}, {0: 5.0}), 0.0) == "one seed: no interval"
    assert verdict(None, 0.0) == "not measured"
    assert verdict(ratio({0: 1.0, 1: 1.01}, {0: 2.0, 1: 2.01}), 1.0) == "lower"
    same = difference({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert ends(same) == (0, 0) and verdict(same, 0.0) == "inside the noise"
