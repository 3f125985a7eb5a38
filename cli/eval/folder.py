"""The folder of an evaluation: one command at a time, one job for good, and what to delete to begin anew."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from cli.eval.model import release
from shared.errors import UserError
from shared.evaluation.records import (
    ANSWERS,
    JOB,
    QUESTIONS,
    REPORT,
    Job,
    Question,
    hold_answers,
    read_job,
    read_questions,
    to_ask_anew,
    write_questions,
)
from shared.files import hold

CONFIG = "config.toml"
LEAVES_S, LOOK_S = 30.0, 0.1  # how long a process that was left behind may take to end


def lock(folder: Path) -> IO[str]:
    """Hold the folder while the returned file is open. UserError when another command holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    refusal = f"the evaluation in {folder} is running already: wait for it, or name another --out."
    return hold(folder / ".lock", refusal)


def claim(folder: Path, job: Job, questions: Sequence[Question], *, fresh: bool) -> None:
    """Make the folder this job's, or find that it is. UserError where it is another's, saying in what they differ."""
    if (folder / CONFIG).exists() and not (folder / JOB).exists():
        raise UserError(f"{folder} holds something else, a run for example: name another --out.")
    if fresh:
        with _nobody_answers(folder):
            for name in (CONFIG, JOB, QUESTIONS, ANSWERS, REPORT):
                (folder / name).unlink(missing_ok=True)
            release(folder)
    there = read_job(folder)
    if there is None:
        if (folder / ANSWERS).exists():
            raise UserError(f"{folder} holds answers of another evaluation: name another --out, or add --fresh.")
        write_questions(folder, job, questions)
        return
    for what, old, new in _differences(there, job):
        raise UserError(
            f"{folder} holds an evaluation with another {what} ({old} there, {new} here): name another --out, or add "
            "--fresh to ask everything again."
        )
    if read_questions(folder) != list(questions):
        raise UserError(
            f"{folder / QUESTIONS} holds other questions than it was made with: {to_ask_anew(folder)} again."
        )


def _nobody_answers(folder: Path) -> IO[str]:
    """Hold the answers once the process of a command that was killed has ended: what it still answers belongs to the
    old job.
    """
    for _ in range(int(LEAVES_S / LOOK_S)):
        with suppress(UserError):
            return hold_answers(folder)
        time.sleep(LOOK_S)
    return hold_answers(folder)


def _differences(there: Job, here: Job) -> list[tuple[str, object, object]]:
    pairs = [(what, there.identity.get(what), here.identity.get(what)) for what in here.identity]
    pairs += [(what, getattr(there, what), getattr(here, what)) for what in ("samples", "temperature", "seed")]
    return [pair for pair in pairs if pair[1] != pair[2]]
