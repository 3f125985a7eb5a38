"""Delays that a setting names."""

import math
from statistics import fmean, median

import numpy as np
import pytest

from shared.config import build, load
from shared.errors import UserError
from shared.latency import parse_latency
from shared.seeds import derive


@pytest.mark.parametrize("text", ["", " ", "0", "0.0", "uniform(0, 0)"])
def test_no_delay_is_none(text):
    assert parse_latency(text) is None


@pytest.mark.parametrize(
    ("text", "mean"),
    [("2", 2.0), (" 0.25 ", 0.25), ("uniform(1,3)", 2.0), ("lognormal(1.5, 0.6)", 1.5 * math.exp(0.18))],
)
def test_draws_have_the_mean_that_is_stated(text, mean):
    latency = parse_latency(text)
    assert latency.mean == pytest.approx(mean)
    draws = [latency.draw(seed) for seed in range(4000)]
    assert fmean(draws) == pytest.approx(mean, rel=0.05)
    assert min(draws) >= 0


def test_a_uniform_delay_stays_inside_its_bounds_and_a_lognormal_one_around_its_median():
    uniform = [parse_latency("uniform(1, 3)").draw(seed) for seed in range(2000)]
    assert 1 <= min(uniform) < 1.05 and 2.95 < max(uniform) <= 3
    assert median(parse_latency("lognormal(1.5, .6)").draw(seed) for seed in range(4000)) == pytest.approx(
        1.5, rel=0.05
    )


def test_a_draw_is_a_function_of_its_seed():
    latency = parse_latency("lognormal(1.5, 0.6)")
    assert latency.draw(2**62 + 1) == latency.draw(2**62 + 1)
    assert len({latency.draw(seed) for seed in range(100)}) == 100


def test_a_draw_says_nothing_of_what_is_sampled_with_the_same_seed():
    seeds = [derive(0, number) for number in range(2000)]
    tokens = [np.random.default_rng(seed).random() for seed in seeds]  # as an engine draws the first one
    delays = [parse_latency("uniform(0, 1)").draw(seed) for seed in seeds]
    assert abs(np.corrcoef(tokens, delays)[0, 1]) < 0.1


@pytest.mark.parametrize(
    "text",
    ["-1", "nan", "inf", "2 s", "normal(1, 2)", "uniform(3, 1)", "uniform(-1, 1)", "uniform(1)", "lognormal(0, 1)"],
)
def test_what_is_no_distribution_is_refused_with_the_right_forms(text):
    with pytest.raises(UserError, match=r"lognormal\(1.5, 0.6\)"):
        parse_latency(text)


def test_the_setting_may_be_a_number():
    assert build({"env": {"latency": 2.5}}).env.latency == "2.5"
    assert load(None, ["--env.latency", "0.3"], {}).env.latency == "0.3"
    assert load(None, ["--env.latency", "uniform(1, 3)"], {}).env.latency == "uniform(1, 3)"


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"env": {"latency": "slow"}}, "no distribution"),
        ({"env": {"latency": "40"}}, "4 calls take 160 s"),
        ({"env": {"kind": "single", "latency": "1"}}, "makes none"),
    ],
)
def test_a_delay_that_cannot_work_is_refused_by_the_configuration(tree, said):
    with pytest.raises(UserError, match=said):
        build(tree)
