"""A reward of one's own: `reward.function = "FILE.py:NAME"`, called in processes that are killed when it hangs.

docs/rewards.md says what the function is given and what it may return. The file is code of whoever runs Headrace, as
the configuration that names it is; no data and no request can name one.
"""

import atexit
import functools
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import UserError
from shared.prompts import QUESTION, Example
from shared.rewards.score import Scored
from shared.workers import NotAnswered, Pool, StartFailed, TooSlow, Worker

CALLS_AT_ONCE = 4  # in an actor: as many processes, and threads that wait for them
REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


class RewardFailed(Exception):
    """No score came of a call; the text follows "the reward of a rollout "."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a rollout was asked, and what is known of it. `extra`: the row's other columns as JSON, or nothing."""

    ground_truth: list[str]
    question: str = ""
    data_source: str = ""
    extra: str = ""

    @classmethod
    def of(cls, messages: list[dict[str, str]], ground_truth: list[str], data_source: str, extra: str) -> "Asked":
        """The question is the last thing that was said to the model."""
        said = [m["content"] for m in messages if m["role"] in ("user", QUESTION)]
        question = said[-1] if said else ""
        return cls(ground_truth=ground_truth, question=question, data_source=data_source, extra=extra)


def score_own(reference: str, text: str, asked: Asked, timeout_s: float, patience_s: float | None = None) -> Scored:
    """What the function says of a sampled text; unscored where no process was free within `patience_s` seconds, and
    with the part "abstained" where the function itself returned None.

    Raises RewardFailed where there is no score, UserError where the function cannot be called at all.
    """
    question = {"text": text, "timeout_s": timeout_s, "question": asked.question, "ground_truth": asked.ground_truth}
    question |= {"data_source": asked.data_source, "extra": json.loads(asked.extra or "{}")}
    try:
        with _pool(reference).worker(patience_s) as worker:
            answer = worker.answer(question, timeout_s, patience_s)
    except NotAnswered:
        return Scored(None, False)
    except TooSlow:
        raise RewardFailed(f"has taken more than {timeout_s:g} s, or its process died") from None
    except StartFailed:
        raise UserError(f"reward.function = '{reference}' ends the process that imports it: mend the file.") from None
    if "error" in answer:
        raise RewardFailed(answer["error"])
    abstained = {"abstained": 1.0} if answer["reward"] is None else {}
    return Scored(answer["reward"], answer["correct"], answer["parts"] | abstained)


def try_out(reference: str, row: Example, timeout_s: float) -> None:
    """Call the function once, as if a policy had written an answer of the row. UserError where that gives no score."""
    asked = Asked(ground_truth=row.ground_truth, question=row.question, data_source=row.data_source, extra=row.extra)
    try:
        score_own(reference, next(iter(row.ground_truth), ""), asked, timeout_s)
    except RewardFailed as error:
        raise UserError(
            f"reward.function = '{reference}' {error}, called on the first row of data.train: mend it, or let it "
            "return None for what it cannot score."
        ) from None


def fingerprint_of(reference: str) -> str:
    """Changes with the file's text and the function's name, not with the place. UserError where it cannot be read."""
    try:
        source = file_of(reference).read_bytes()
    except OSError as error:
        raise UserError(f"reward.function = '{reference}' cannot be read ({error.strerror}): check the path.") from None
    return hashlib.sha256(source).hexdigest()[:16] + reference.rpartition(":")[2]


class _Worker(Worker):
    """A process that has imported the file."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        super().__init__(
            "shared.rewards.own_worker", str(file_of(reference)), reference.rpartition(":")[2], stderr=None
        )

    def _started(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self.broken = True
            raise UserError(f"reward.function = '{self._reference}' {answer['error']}.")


@functools.cache
def _pool(reference: str) -> Pool[_Worker]:
    pool = Pool(lambda: _Worker(reference), CALLS_AT_ONCE)
    atexit.register(pool.stop)
    return pool


def file_of(reference: str) -> Path:
    """The file in FILE.py:NAME."""
    return Path(reference.rpartition(":")[0])
