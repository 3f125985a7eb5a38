"""Whether two mathematical answers are equal: numbers here, everything else by math-verify in worker processes.

Each comparison has a time limit of its own, which starts when a worker takes it up: what is too slow to compare counts
as different, and an expression made to be slow costs its limit once, since verdicts are remembered. Waiting for a free
worker is somebody else's fault and never makes an answer wrong: a caller with a deadline gets NotAnswered instead.
"""

import re
import threading
import time
from collections import OrderedDict
from decimal import Decimal

from shared.rewards.equality_pool import POOL, NotAnswered, Verdict

__all__ = ["NotAnswered", "Verdict", "compare", "equal", "number"]

NUMBER = re.compile(r"-?\$?(\d{1,3}(,\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
LONGEST = 2000  # characters; no answer of any set is a tenth of it, and parsing time grows with the square
REMEMBERED = 10_000


def equal(answer: str, target: str, timeout_s: float = 5.0, deadline: float | None = None) -> bool:
    """Whether `answer` is mathematically `target`, as `compare` finds."""
    return compare(answer, target, timeout_s, deadline) is Verdict.EQUAL


def compare(answer: str, target: str, timeout_s: float = 5.0, deadline: float | None = None) -> Verdict:
    """EQUAL, DIFFERENT (also where an answer cannot be read), or GIVEN_UP after `timeout_s`.

    Safe to call from any thread. Raises NotAnswered when no worker was free, or had started, before `deadline` (of
    time.monotonic), UserError where math-verify is missing or cannot be loaded.
    """
    answer, target = _bare(answer), _bare(target)
    if not answer or not target or (answer != target and len(answer) > LONGEST):
        return Verdict.DIFFERENT
    if answer == target:
        return Verdict.EQUAL
    left, right = number(answer), number(target)
    if left is not None and right is not None:
        both_whole = left == left.to_integral_value() and right == right.to_integral_value()
        # Fractions that differ may still be equal to math-verify's precision.
        if left == right or both_whole:
            return Verdict.EQUAL if left == right else Verdict.DIFFERENT
    question = (_spelled(answer, left), _spelled(target, right))
    verdict = _VERDICTS.get(question)
    if verdict is None:
        with POOL.worker(_left(deadline)) as worker:
            # another rollout may have had the same answer compared while this one waited
            verdict = _VERDICTS.get(question)
            if verdict is None:
                verdict = worker.ask(*question, timeout_s, _left(deadline))
                _VERDICTS.put(question, verdict)
    return verdict


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def number(text: str) -> Decimal | None:
    """A plain decimal number; thousands commas, a dollar sign and an exponent are allowed; None for anything
    else.
    """
    match = NUMBER.fullmatch(text)
    if match is None or not (match.group(1) or len(match.group(3) or "") > 1):
        return None
    return Decimal(text.replace("$", "").replace(",", ""))


def _bare(text: str) -> str:
    return " ".join(text.strip().strip("$").replace("\\$", "").split())


def _spelled(text: str, value: Decimal | None) -> str:
    """math-verify reads 3e8 as a product with Euler's number."""
    return text if value is None else f"{value:f}"


class _Verdicts:
    """The last REMEMBERED comparisons; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

    def get(self, question: tuple[str, str]) -> Verdict | None:
        with self._lock:
            if question in self._known:
                self._known.move_to_end(question)
            return self._known.get(question)

    def put(self, question: tuple[str, str], verdict: Verdict) -> None:
        with self._lock:
            self._known[question] = verdict
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


_VERDICTS = _Verdicts()
