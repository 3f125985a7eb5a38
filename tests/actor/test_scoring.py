"""A reward may do anything: its rollout is masked out, the others are trained on, the actor goes on."""

import threading
import time
from collections.abc import Callable

import pytest

from services.actor import scoring
from services.actor.rollout import Rollout
from services.actor.scoring import score_rollouts
from services.actor.verdicts import answered
from shared.config import build
from shared.evaluation.records import Question
from shared.messages import FINISHED
from shared.rewards import Scored
from shared.rewards.own import Asked

CONFIG = build({})
_over = threading.Event()


def wrote(text: str) -> Rollout:
    return Rollout(ids=[1], mask=[True], logprobs=[-0.1], pieces=[("policy", text)], status=FINISHED)


def hang() -> Scored:
    _over.wait(20)
    return Scored(1.0, True)


def fail() -> Scored:
    raise ZeroDivisionError("of the reward")


WRONG: dict[str, Callable[[], object]] = {
    "raises": fail,
    "hangs": hang,
    "None": lambda: Scored(None, False),
    "NaN": lambda: Scored(float("nan"), True),
    "infinite": lambda: Scored(float("inf"), True),
    "a string": lambda: Scored("1.0", True),  # type: ignore[arg-type]
    "not a score": lambda: 1.0,
}


@pytest.mark.parametrize("how", WRONG)
async def test_a_reward_that_fails_leaves_its_rollout_unscored_and_the_others_scored(how: str, monkeypatch):
    def reward(kind: str, text: str, *_: object, **__: object) -> object:
        return WRONG[how]() if text == "bad" else Scored(float(text == "right"), text == "right")

    _over.clear()
    monkeypatch.setattr(scoring, "score", reward)
    try:
        scores = await score_rollouts(
            [wrote("right"), wrote("bad"), wrote("wrong")],
            Asked(ground_truth=["x"]),
            CONFIG,
            time.monotonic(),
            late_s=0.5,
        )
    finally:
        _over.set()
    assert [s.reward for s in scores] == [1.0, None, 0.0]
    assert [s.correct for s in scores] == [True, False, False]


OWN = """
def score(text, ground_truth, question, data_source, extra):
    if text == "bad":
        raise ValueError("of the reward")
    return {"reward": len(text) / 10 + extra["bonus"], "correct": text in ground_truth and question == "which?"}
"""


@pytest.mark.slow
async def test_a_function_of_one_s_own_scores_training_and_evaluations(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    config = build({"reward": {"function": f"{tmp_path / 'own.py'}:score"}})
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "which?"}]
    rollouts = [wrote("right"), wrote("bad"), wrote("no")]
    asked = Asked.of(messages, ["right"], "set", '{"bonus": 1}')
    scores = await score_rollouts(rollouts, asked, config, time.monotonic() + 30)
    assert [s.reward for s in scores] == [1.5, None, 1.2]
    assert [s.correct for s in scores] == [True, False, False]

    question = Question(
        number=0, source="set", index=0, id="q", messages=messages, ground_truth=["right"], extra='{"bonus": 0}'
    )
    found = await answered(question, rollouts, config, texts=0)
    assert (found.scores, found.correct, found.f1) == ([0.5, None, 0.2], [True, False, False], [])
