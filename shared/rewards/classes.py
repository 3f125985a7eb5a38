"""Which of several answers are the same answer, for majority votes."""

from collections.abc import Sequence

from shared.rewards.score import Kind
from shared.rewards.text import normalise


def answer_classes(kind: Kind, answers: Sequence[str | None], timeout_s: float = 5.0) -> list[int | None]:
    """A number per answer, equal answers the same one, counted from 0 in the order of first sight; None: no answer.

    em, f1: equal when normalised alike. math: equal to the first answer of a class by math-verify, the classes tried
    in order; each pair of different spellings is compared once, in at most `timeout_s`. One that no worker could be had
    for is a class of its own.
    """
    firsts: list[str] = []
    known: dict[str, int] = {}
    classes: list[int | None] = []
    for answer in answers:
        if answer is None or not answer.strip():
            classes.append(None)
            continue
        spelling = answer.strip() if kind == "math" else normalise(answer)
        if spelling not in known:
            known[spelling] = _class_of(kind, spelling, firsts, timeout_s)
            if known[spelling] == len(firsts):
                firsts.append(spelling)
        classes.append(known[spelling])
    return classes


def _class_of(kind: Kind, spelling: str, firsts: Sequence[str], timeout_s: float) -> int:
    if kind != "math":
        return len(firsts)
    from shared.rewards.equality import NotAnswered, equal

    # math-verify asks whether an answer fits a target; the first answer of a class stands for the target.
    try:
        return next((i for i, first in enumerate(firsts) if equal(spelling, first, timeout_s)), len(firsts))
    except NotAnswered:
        return len(firsts)
