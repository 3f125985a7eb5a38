"""What a task asks for."""

import pytest

from services.replay.tasks import eval_task
from shared.config import build
from tests.replay.peers import Questions


@pytest.mark.parametrize(
    ("evaluation", "temperature"),
    [
        ({}, 0.0),
        ({"samples": 8}, 0.9),
        ({"samples": 8, "temperature": 0.6}, 0.6),
        ({"temperature": 0.6}, 0.6),
    ],
)
def test_several_answers_to_a_held_out_question_are_not_the_same_greedy_one(
    evaluation: dict[str, float], temperature: float
) -> None:
    config = build({"eval": evaluation, "rollout": {"temperature": 0.9}})
    task = eval_task(config, Questions(3), 0, 1, attempt=0)
    assert (task.group_size, task.temperature) == (config.eval.samples, temperature)
