"""From the rollouts of one evaluated question to the line that is kept of them."""

import asyncio
import time

from services.actor.rollout import Rollout
from services.actor.scoring import score_rollouts
from shared.config import Config
from shared.evaluation.records import Answered, Question
from shared.rewards import answer_classes, answer_of
from shared.rewards.own import Asked
from shared.rewards.text import f1

SCORING_S = 3600.0  # nobody waits for an evaluation: its comparisons take the turns they need


async def answered(question: Question, rollouts: list[Rollout], config: Config, texts: int) -> Answered:
    """Score every rollout, and find out which of them give the same answer.

    The score is the answer's alone (exact match, F1 or equality), whatever credit for form training gives.
    """
    kind = config.reward.kind
    plain = config.model_copy(update={"reward": config.reward.model_copy(update={"format_score": False})})
    deadline = time.monotonic() + SCORING_S
    asked = Asked.of(question.messages, question.ground_truth, question.source, question.extra)
    scores = await score_rollouts(rollouts, asked, plain, deadline)
    answers = [answer_of(kind, r.sampled_text) if r.scored else None for r in rollouts]
    votes = await asyncio.to_thread(answer_classes, kind, answers)
    return Answered(
        number=question.number,
        source=question.source,
        id=question.id,
        scores=[s.reward for s in scores],
        correct=[s.correct for s in scores],
        f1=[]
        if kind == "math" or config.reward.function
        else [_f1(a, r, question) for a, r in zip(answers, rollouts, strict=True)],
        answers=answers,
        votes=votes,
        statuses=[r.status for r in rollouts],
        tokens=[sum(r.mask) for r in rollouts],
        searches=[r.searches for r in rollouts],
        abstained=[bool(s.parts.get("abstained")) for s in scores] if config.reward.function else [],
        given_up=[bool(s.parts.get("given_up")) for s in scores] if kind == "math" else [],
        texts=["".join(text for _, text in r.pieces) for r in rollouts] if question.index < texts else [],
    )


def _f1(answer: str | None, rollout: Rollout, question: Question) -> float | None:
    if not rollout.scored:
        return None
    return 0.0 if answer is None else f1(answer, question.ground_truth)
