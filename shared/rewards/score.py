"""One function that scores a rollout, whatever the kind of its reward.

`correct` says whether the ANSWER is right and decides the mixed-outcome test of the replay buffer; `reward` is
what is trained on, and may also hold partial credit and format. They are never derived from each other
elsewhere.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.errors import UserError
from shared.rewards.answers import after_mark, last_answer, last_boxed, targets
from shared.rewards.tags import check_form
from shared.rewards.text import exact_match, f1

Kind = Literal["em", "f1", "math"]

# Raised whenever any reward can change for the same text: stored groups of another version are dropped.
VERSION = 2

# Search-R1's graded score: (wrong, right) for a well-formed transcript, then for a badly formed one with an answer.
WELL_FORMED = (0.2, 1.0)
BADLY_FORMED = (0.1, 0.8)


@dataclass(frozen=True)
class Scored:
    """The reward (None: cannot be scored, the rollout is masked out), whether the answer is right, and what it
    is made of.
    """

    reward: float | None
    correct: bool
    parts: dict[str, float] = field(default_factory=dict)


def score(
    kind: Kind,
    text: str | None,
    ground_truth: Any,
    *,
    format_score: bool = False,
    math_timeout_s: float = 5.0,
    deadline: float | None = None,
) -> Scored:
    """Score the sampled text of one rollout (no prompt, no environment text) against `ground_truth` (see
    `targets`).

    em, f1: the last <answer>; math: the last \\boxed{}, else what follows the last ####. `correct` is exact
    match for both em and f1. With `format_score` the answer's value moves the reward between the ends of
    WELL_FORMED or BADLY_FORMED; a badly formed transcript without an answer is 0. It needs the tag grammar, so
    it does not apply to math. Unscored: no text, no acceptable answer to compare with, or an answer that could not
    be compared before `deadline` (of time.monotonic) because others' kept the workers busy; one that is itself too
    slow to compare is wrong.
    """
    wanted = targets(ground_truth)
    if text is None or not wanted:
        return Scored(None, False)
    if kind == "math":
        return _score_math(text, wanted, math_timeout_s, deadline)
    if kind not in ("em", "f1"):
        raise UserError(f"reward.kind is {kind!r}: it must be em, f1 or math.")
    answer = last_answer(text)
    correct = answer is not None and exact_match(answer, wanted)
    value = float(correct) if kind == "em" or answer is None else f1(answer, wanted)
    form = check_form(text)
    parts = {kind: value, "answered": float(answer is not None), "well_formed": float(form.ok)}
    if not format_score:
        return Scored(value, correct, parts)
    if answer is None:
        return Scored(0.0, False, parts)
    wrong, right = WELL_FORMED if form.ok else BADLY_FORMED
    return Scored(wrong + value * (right - wrong), correct, parts)


def answer_of(kind: Kind, text: str) -> str | None:
    """The final answer in sampled text, as it is written; None where there is none."""
    return (last_boxed(text) or after_mark(text)) if kind == "math" else last_answer(text)


def _score_math(text: str, wanted: list[str], timeout_s: float, deadline: float | None) -> Scored:
    from shared.rewards.equality import NotCompared, equal

    answer = answer_of("math", text)
    try:
        # Too slow to compare is wrong, not unscored: else an unreadable answer would be a way out of a bad reward.
        correct = bool(answer) and any(equal(answer, target, timeout_s, deadline) for target in wanted)
    except NotCompared:
        return Scored(None, False, {"answered": 1.0})
    return Scored(float(correct), correct, {"math": float(correct), "answered": float(bool(answer))})


def fingerprint(**settings: Any) -> str:
    """16 hex characters over the reward settings and this module's VERSION: stored groups scored otherwise are
    dropped.
    """
    named = json.dumps({"version": VERSION, **settings}, sort_keys=True, default=str)
    return hashlib.sha256(named.encode()).hexdigest()[:16]
