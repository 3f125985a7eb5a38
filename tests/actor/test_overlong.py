"""The penalty for overlong responses: DAPO's formula in a single turn, and what it must not touch."""

import pytest

from services.actor.engines.engine import Finish, Sampling
from services.actor.group import roll_out
from services.actor.overlong import penalised, tokens_left
from services.actor.rollout import Budget, Player, Rollout
from services.actor.text import Codec
from shared.messages import Task
from shared.prompts import QUESTION
from shared.rewards import Scored
from shared.settings import Reward
from shared.versions import Version
from tests.actor.scripted_engine import ScriptedEngine

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


@pytest.mark.parametrize("kind", ["train", "eval"])
async def test_it_lowers_the_reward_of_training_rollouts_alone_and_never_what_is_right(kind, make_config, model_dir):
    codec = Codec(model_dir)
    short, long = codec.encode("<answer> b </answer>"), codec.encode("c c c c c <answer> b </answer>")
    said = iter([short, long])

    def say(ids: list[int], sampling: Sampling) -> tuple[list[int], Finish]:
        return next(said), "stop"

    async def search(query: str, seed: int):
        raise AssertionError("nothing is searched here")

    async def marks() -> dict[str, str]:
        return {}

    config = make_config(reward={"overlong_tokens": 5}, learner={"advantage": "mean"})
    budget = Budget(max_tokens=100, max_turn_tokens=len(long), max_turns=2)
    messages = [{"role": QUESTION, "content": "a"}]
    task = Task(id="t", kind=kind, number=0, attempt=0, seed=1, group_size=2, temperature=1.0, min_version=0,
                data_source="x", messages=messages, ground_truth=["b"])  # fmt: skip
    group = await roll_out(
        task, Player(ScriptedEngine(say), codec, budget, search), config, "a", lambda: Version(0, 0), marks
    )
    assert group.header.correct == [True, True] and not group.header.mixed
    if kind == "eval":
        assert group.header.rewards == [1.0, 1.0] and group.payload is None
    else:
        assert group.header.rewards == [1.0, 0.0]
        assert group.payload is not None
        assert group.payload.advantages.tolist() == [0.5, -0.5]  # without the standard deviation
