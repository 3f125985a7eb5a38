"""The processes in which math-verify compares.

It stops a slow comparison with a signal, which works in a main thread only and not inside C code. A process of its own
can be killed whatever it does.
"""

import atexit
import enum
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from shared import workers
from shared.errors import UserError
from shared.workers import NotAnswered, StartFailed, TooSlow

WORKERS = 2  # compare at once; a worker holds about 80 MB


class Verdict(enum.Enum):
    """What came of a comparison."""

    EQUAL = enum.auto()
    DIFFERENT = enum.auto()
    GIVEN_UP = enum.auto()  # it took too long, or the process died of it


class Worker(workers.Worker):
    """One comparing process."""

    def __init__(self) -> None:
        super().__init__("shared.rewards.equality_worker")

    def ask(self, answer: str, target: str, timeout_s: float, patience_s: float | None = None) -> Verdict:
        """Compare; GIVEN_UP, and the worker is broken, when that takes longer than `timeout_s` or kills it.

        Raises NotAnswered where the process has not started within `patience_s`, UserError where it died of that.
        Neither says anything about any answer.
        """
        question = {"answer": answer, "target": target, "timeout_s": timeout_s}
        try:
            return Verdict.EQUAL if self.answer(question, timeout_s, patience_s)["equal"] else Verdict.DIFFERENT
        except TooSlow:
            return Verdict.GIVEN_UP
        except StartFailed:
            raise UserError(
                "math-verify does not start, so no mathematical answer can be scored: "
                "`python -c 'import math_verify'` says why."
            ) from None


class Pool(workers.Pool[Worker]):
    """The workers of this process."""

    @contextmanager
    def worker(self, patience_s: float | None) -> Iterator[Worker]:
        """As in any pool. UserError where math-verify is missing."""
        if find_spec("math_verify") is None:
            raise UserError(
                "reward.kind = math needs the package math-verify: pip install -e '.[math]' in Headrace's folder."
            )
        with super().worker(patience_s) as worker:
            yield worker


POOL = Pool(Worker, WORKERS)
atexit.register(POOL.stop)

__all__ = ["POOL", "NotAnswered", "Verdict", "Worker"]
