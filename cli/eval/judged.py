"""Which samples of an evaluation count, and as what, where a score is missing.

A model answers for what it wrote and for how long it took: a sample that ran out of time in every try, or whose answer
nobody could score (the reward function raised, or no comparison came to an end), counts as wrong, score 0. Such
samples are seldom the right ones: they are the longest and the strangest. A mean over the rest would be the higher the
more of them a model writes, which is why published figures count every sample that was drawn.

Only what says nothing of the model is left out: the environment did not answer, or the reward function itself said
that there is nothing to score (it returned None).
"""

from collections.abc import Sequence

from msgspec.structs import replace

from shared.evaluation.records import Answered
from shared.messages import ENV_FAILED


def left_out(answered: Answered) -> list[bool]:
    """Which of the samples [n] count as nothing at all."""
    abstained = answered.abstained or [False] * len(answered.scores)
    return [
        score is None and (status == ENV_FAILED or nothing)
        for score, status, nothing in zip(answered.scores, answered.statuses, abstained, strict=True)
    ]


def counted_wrong(answered: Answered) -> list[bool]:
    """Which of the samples [n] have no score and count as wrong."""
    return [score is None and not out for score, out in zip(answered.scores, left_out(answered), strict=True)]


def judged(answered: Answered) -> Answered:
    """The same with a score for every sample that counts; None is left to those that are left out."""
    wrong = counted_wrong(answered)
    return replace(answered, scores=_judged(answered.scores, wrong), f1=_judged(answered.f1, wrong))


def _judged(values: Sequence[float | None], wrong: Sequence[bool]) -> list[float | None]:
    return [0.0 if is_wrong else value for value, is_wrong in zip(values, wrong, strict=True)] if values else []
