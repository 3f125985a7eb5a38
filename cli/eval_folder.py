"""The folder of an evaluation: one command at a time, one job for good, and what to delete to begin anew."""

import fcntl
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from cli.eval_model import release
from shared.errors import UserError
from shared.evaluation.records import ANSWERS, JOB, QUESTIONS, Job, Question, read_job, write_questions

REPORT, CONFIG = "eval.json", "config.toml"


def lock(folder: Path) -> IO[str]:
    """Hold the folder while the returned file is open. UserError when another command holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UserError(f"the evaluation in {folder} is running already: wait for it, or name another --out.") from None
    return file


def claim(folder: Path, job: Job, questions: Sequence[Question], *, fresh: bool) -> None:
    """Make the folder this job's, or find that it is. UserError where it is another's, saying in what they differ."""
    if fresh:
        for name in (JOB, QUESTIONS, ANSWERS, REPORT):
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


def _differences(there: Job, here: Job) -> list[tuple[str, object, object]]:
    pairs = [(what, there.identity.get(what), here.identity.get(what)) for what in here.identity]
    pairs += [(what, getattr(there, what), getattr(here, what)) for what in ("samples", "temperature", "seed")]
    return [pair for pair in pairs if pair[1] != pair[2]]
