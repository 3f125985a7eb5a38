"""Advantages and Headroom against plain definitions, and the edges with one right answer."""

import math
import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.advantages import group_advantages
from shared.headroom import headroom
from shared.seeds import derive


@given(st.lists(st.one_of(st.none(), st.floats(-2, 2)), min_size=2, max_size=20))
def test_advantages_equal_the_definition(rewards):
    scored = [r for r in rewards if r is not None]
    if len(scored) < 2:
        return
    got = group_advantages(rewards)
    std = statistics.stdev(scored)
    for r, a in zip(rewards, got, strict=True):
        expected = 0.0 if r is None or std < 1e-3 else (r - statistics.fmean(scored)) / (std + 1e-6)
        assert math.isclose(a, expected, rel_tol=1e-4, abs_tol=1e-4)


@given(st.lists(st.one_of(st.none(), st.floats(-2, 2)), min_size=2, max_size=20))
def test_without_std_an_advantage_is_the_distance_to_the_mean(rewards):
    scored = [r for r in rewards if r is not None]
    if len(scored) < 2:
        return
    flat = statistics.stdev(scored) < 1e-3
    for r, a in zip(rewards, group_advantages(rewards, "mean"), strict=True):
        expected = 0.0 if r is None or flat else r - statistics.fmean(scored)
        assert math.isclose(a, expected, rel_tol=1e-4, abs_tol=1e-6)


def test_rounding_residue_of_equal_rewards_gives_zero_not_thousands():
    assert group_advantages([0.1 + 0.2, 0.3, 0.3, 0.3]).tolist() == [0.0] * 4
    assert group_advantages([0.3 + 1e-5, 0.3]).tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(st.floats(-30, 0), st.sampled_from([-1, 0, 1])), min_size=1, max_size=50))
def test_headroom_equals_the_definition_and_lies_between_0_and_1(tokens):
    slow = [(1 - math.exp(lp)) if s > 0 else math.exp(lp) if s < 0 else 0.0 for lp, s in tokens]
    got = headroom([lp for lp, _ in tokens], [s for _, s in tokens])
    assert math.isclose(got, sum(slow) / len(slow), rel_tol=1e-5, abs_tol=1e-6) and 0 <= got <= 1


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-3, 3)), min_size=1, max_size=50))
def test_weighted_headroom_counts_each_token_by_its_advantage(tokens):
    slow = [(1 - math.exp(lp)) * a if a > 0 else math.exp(lp) * -a for lp, a in tokens]
    got = headroom([lp for lp, _ in tokens], [a for _, a in tokens], "advantage")
    assert math.isclose(got, sum(slow) / len(slow), rel_tol=1e-5, abs_tol=1e-6)


def test_headroom_keeps_its_digits_near_certainty():
    assert math.isclose(headroom(np.array([-1e-6], np.float32), [1]), 1e-6, rel_tol=1e-3)


def test_seeds_differ_in_every_part():
    seen = {
        derive(run, task, attempt, rollout)
        for run in range(4)
        for task in range(4)
        for attempt in range(4)
        for rollout in range(4)
    }
    assert len(seen) == 256 and derive(1, 2, 3) == derive(1, 2, 3)
