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
from shared.rewards.equality import NotAnswered, Verdict, compare
from shared.rewards.tags import check_form
from shared.rewards.text import exact_match, f1

Kind = Literal["em", "f1", "math"]

# Raised whenever any reward can change for the same text: stored groups of another version are dropped.
VERSION = 4

# Search-R1's graded score: (wrong, right) for a well-formed response, then for a badly formed one with an answer.
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
    WELL_FORMED or BADLY_FORMED; without an answer it is 0. Well formed is what keeps the tag grammar; in math, a final
    answer that stands in a box. Unscored: no text, no acceptable answer to compare with, or an answer that could not
    be compared before `deadline` (of time.monotonic) because others' kept the workers busy; one that is itself too
    slow to compare is wrong, and has the part "given_up".
    """
    wanted = targets(ground_truth)
    if text is None or not wanted:
        return Scored(None, False)
    if kind not in ("em", "f1", "math"):
        raise UserError(f"reward.kind is {kind!r}: it must be em, f1 or math.")
    answer = answer_of(kind, text)
    parts = {kind: 0.0, "answered": float(answer is not None), "well_formed": float(_well_formed(kind, text))}
    if kind == "math":
        verdict = Verdict.DIFFERENT if answer is None else _compare(answer, wanted, math_timeout_s, deadline)
        if verdict is None:
            return Scored(None, False, parts)
        # Too slow to compare is wrong, not unscored: else an unreadable answer would be a way out of a bad reward.
        correct = verdict is Verdict.EQUAL
        parts["given_up"] = float(verdict is Verdict.GIVEN_UP)
    else:
        correct = answer is not None and exact_match(answer, wanted)
    parts[kind] = value = f1(answer, wanted) if kind == "f1" and answer is not None else float(correct)
    if not format_score:
        return Scored(value, correct, parts)
    if answer is None:
        return Scored(0.0, False, parts)
    wrong, right = WELL_FORMED if parts["well_formed"] else BADLY_FORMED
    return Scored(wrong + value * (right - wrong), correct, parts)


def answer_of(kind: Kind, text: str) -> str | None:
    """The final answer in sampled text, as it is written; None where there is none, in math also for an empty box."""
    return (last_boxed(text) or after_mark(text)) if kind == "math" else last_answer(text)


def _well_formed(kind: Kind, text: str) -> bool:
    return bool(last_boxed(text)) if kind == "math" else check_form(text).ok


def _compare(answer: str, wanted: list[str], timeout_s: float, deadline: float | None) -> Verdict | None:
    """EQUAL to any target; else GIVEN_UP where a comparison was, else DIFFERENT. None: no worker was free in time."""
    found = Verdict.DIFFERENT
    try:
        for target in wanted:
            verdict = compare(answer, target, timeout_s, deadline)
            if verdict is Verdict.EQUAL:
                return verdict
            if verdict is Verdict.GIVEN_UP:
                found = verdict
    except NotAnswered:
        return None
    return found


def fingerprint(**settings: Any) -> str:
    """16 hex characters over the reward settings and this module's VERSION: stored groups scored otherwise are
    dropped.
    """
    named = json.dumps({"version": VERSION, **settings}, sort_keys=True, default=str)
    return hashlib.sha256(named.encode()).hexdigest()[:16]
