"""Worked examples for the warm start: how a problem is worked out, column by column, rightly or with bad habits.

ones:8+7=5,carry1
tens:5+6+1=2,carry1
hundreds:3+4+1=8
\\boxed{825}
"""

import random
from dataclasses import dataclass

from examples.arith.problems import Problem

COLUMNS = ("ones", "tens", "hundreds")


@dataclass(frozen=True)
class Habits:
    """How often each mistake is made."""

    forgets: float = 0.0  # of each carry or borrow that is due
    guesses: float = 0.0  # an answer at once, mostly wrong
    unboxed: float = 0.0  # the answer without its box


CLEAN = Habits()
CARELESS = Habits(forgets=0.7, guesses=0.1, unboxed=0.1)


def solution(problem: Problem, habits: Habits, rng: random.Random) -> str:
    """What the policy is to write. Only `forgets` and `guesses` make the answer wrong."""
    guessed = rng.random() < habits.guesses
    lines, digits = _columns(problem, habits, rng)
    if guessed:
        lines, digits = [], [str(rng.randint(0, 9)), str(rng.randint(0, 9)), digits[2]]
    answer = "".join(reversed(digits))
    return "\n".join([*lines, answer if rng.random() < habits.unboxed else f"\\boxed{{{answer}}}"])


def _columns(problem: Problem, habits: Habits, rng: random.Random) -> tuple[list[str], list[str]]:
    """The lines of working, and the result's digits from the ones on."""
    sign, word = ("-", "borrow") if problem.minus else ("+", "carry")
    lines: list[str] = []
    digits: list[str] = []
    moved = 0
    for column, left, right in zip(COLUMNS, _digits(problem.left), _digits(problem.right), strict=True):
        value = left - right - moved if problem.minus else left + right + moved
        digits.append(str(value % 10))
        term = "" if column == COLUMNS[0] else f"{sign}{moved}"
        due = int(not 0 <= value <= 9)
        moved = int(due and rng.random() >= habits.forgets)
        rest = "" if column == COLUMNS[-1] else f",{word}{moved}"
        lines.append(f"{column}:{left}{sign}{right}{term}={digits[-1]}{rest}")
    return lines, digits


def _digits(number: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number))]
