"""The penalty for overlong responses: DAPO's formula in a single turn, and what it must not touch."""

import pytest

from services.actor.overlong import penalised, tokens_left
from services.actor.rollout import Budget, Rollout
from shared.rewards import Scored
from shared.settings import Reward

BUDGET = Budget(max_tokens=100, max_turn_tokens=40)


def rollout(*turns: tuple[int, int]) -> Rollout:
    return Rollout(ids=[7] * turns[-1][1], turns=list(turns))


def published(length: int, longest: int, cache: int) -> float:
    """R_length of DAPO, equation 13."""
    if length <= longest - cache:
        return 0.0
    return ((longest - cache) - length) / cache if length <= longest else -1.0


@pytest.mark.parametrize("length", range(41))
def test_in_a_single_turn_it_is_the_published_formula(length: int) -> None:
    settings = Reward(overlong_tokens=10)
    got = penalised(Scored(1.0, True), tokens_left(rollout((0, length)), 5, BUDGET), settings)
    assert got.reward == pytest.approx(1.0 + published(length, 40, 10))
    assert got.correct
    assert got.parts.get("overlong", 0.0) == pytest.approx(published(length, 40, 10))


def test_the_nearer_of_the_two_limits_counts() -> None:
    assert tokens_left(rollout((0, 5), (50, 60)), 20, BUDGET) == 20  # of the transcript: 100 - 20 - 60
    assert tokens_left(rollout((0, 5), (30, 60)), 20, BUDGET) == 10  # of the turn: 40 - 30
    assert tokens_left(rollout((0, 39), (40, 45)), 20, BUDGET) == 35  # a long turn before the last one is forgiven
    assert tokens_left(Rollout(), 100, BUDGET) == 0


def test_an_unscored_rollout_stays_unscored_and_off_means_off() -> None:
    assert penalised(Scored(None, False), 0, Reward(overlong_tokens=10)) == Scored(None, False)
    assert penalised(Scored(0.5, False), 0, Reward()) == Scored(0.5, False)


def test_the_factor_scales_it() -> None:
    assert penalised(Scored(0.0, False), 5, Reward(overlong_tokens=10, overlong_penalty=0.4)).reward == pytest.approx(
        -0.2
    )
