"""The files of an evaluation: what is asked, and one line per answered question.

<folder>/job.json         how it is asked; fixed at the start
         questions.jsonl  every question, in order; fixed at the start
         answers.jsonl    appended as questions are answered, in any order; a killed evaluation goes on from it
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from shared.errors import UserError
from shared.events import plain
from shared.files import hold, written_whole
from shared.messages import LARGEST, UNREADABLE

JOB, QUESTIONS, ANSWERS = "job.json", "questions.jsonl", "answers.jsonl"
REPORT = "eval.json"  # what the answers came to
HELD = "model"  # the weights of a run, while they are evaluated
ANSWERS_LOCK = ".answers.lock"  # held by the process that answers


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How every question is asked. `identity` names what else the answers depend on: model, settings, suites."""

    identity: dict[str, str]
    model: str  # directory of the weights
    shown_model: str  # as the user knows it
    samples: int  # n, per question
    temperature: float  # 0: greedy
    seed: int
    texts: int = 0  # the first questions of each source keep what was written


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One question. `index` is its place in its source, and with the source's name decides its seeds."""

    number: int
    source: str
    index: int
    id: str
    messages: list[dict[str, str]]
    ground_truth: list[str]
    extra: str = ""  # the row's other columns as JSON, for reward.function


class Answered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What n samples of one question gave; lists have one item per sample."""

    number: int
    source: str
    id: str
    scores: list[float | None]  # of the answer, in [0, 1] without credit for form, or reward.function's; None: unscored
    correct: list[bool]
    f1: list[float | None]  # beside exact match; empty for mathematics and reward.function
    answers: list[str | None]
    votes: list[int | None]  # equal answers have the same number; None: no answer
    statuses: list[str]
    tokens: list[int]  # sampled
    searches: list[int]
    abstained: list[bool] = []  # reward.function returned None: there is nothing to score
    given_up: list[bool] = []  # mathematics: comparing the answer took too long, so it counts as wrong
    texts: list[str] = []


def write_questions(folder: Path, job: Job, questions: Sequence[Question]) -> None:
    """Fix what is asked; the job last, so that a folder with a job has its questions."""
    with written_whole(folder / QUESTIONS) as file:
        file.writelines(msgspec.json.encode(q) + b"\n" for q in questions)
    with written_whole(folder / JOB) as file:
        file.write(msgspec.json.format(msgspec.json.encode(job), indent=1) + b"\n")


def read_job(folder: Path) -> Job | None:
    """The job of a folder; None where there is none. UserError where it cannot be read."""
    file = folder / JOB
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Job)
    except (OSError, *UNREADABLE) as error:
        raise UserError(f"{file} cannot be read ({plain(str(error))}): {to_ask_anew(folder)} again.") from None


def to_ask_anew(folder: Path) -> str:
    """What must go, and no more: beside them may be a retriever's index, or files of the user's."""
    return f"remove {JOB}, {QUESTIONS}, {ANSWERS} and {REPORT} in {folder} to have everything asked"


def weights_of(folder: Path, job: Job) -> Path:
    """The weights that are evaluated: those that the folder holds, else those that the job names."""
    return folder / HELD if (folder / HELD).is_dir() else Path(job.model)


def read_questions(folder: Path) -> list[Question]:
    """Every question, in order. UserError where they cannot be read."""
    decoder, file = msgspec.json.Decoder(Question), folder / QUESTIONS
    try:
        return [decoder.decode(line) for line in file.read_bytes().splitlines()]
    except (OSError, *UNREADABLE) as error:
        raise UserError(f"{file} cannot be read ({plain(str(error))}): {to_ask_anew(folder)} again.") from None


def hold_answers(folder: Path) -> IO[str]:
    """Be the process that answers while the returned file is open. UserError where another is."""
    refusal = f"another process is answering the questions of {folder}: end it, or name another --out."
    return hold(folder / ANSWERS_LOCK, refusal)


class AnswersFile:
    """Reads the answers that are there, more at each call; a line without its end yet is left for later."""

    def __init__(self, folder: Path, questions: Sequence[Question] = (), samples: int = 0) -> None:
        """questions, samples: what may be answered, each once, and how often; where they are given."""
        self._file = folder / ANSWERS
        self._offset = self._lines = 0
        self._decoder = msgspec.json.Decoder(Answered)
        self._samples, self._left = samples, {q.number: q for q in questions} if questions else None

    def read(self) -> list[Answered]:
        """What came since the last call. UserError for a line that cannot be the answer to a question."""
        if not self._file.is_file():
            return []
        with self._file.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for line in whole.split(b"\n")[:-1]:
            self._lines += 1
            try:
                answered = self._decoder.decode(line)
                self._check(answered)
            except (ValueError, *UNREADABLE) as error:
                raise UserError(
                    f"{self._file} is damaged in line {self._lines} ({plain(str(error))}): take the line out to have "
                    f"its question asked again, or {to_ask_anew(self._file.parent)}."
                ) from None
            found.append(answered)
        return found

    def _check(self, a: Answered) -> None:
        """Raise ValueError for what is no answer to a question that is open."""
        n = self._samples or len(a.scores)
        of_all = (a.scores, a.correct, a.answers, a.votes, a.statuses, a.tokens, a.searches)
        if (
            n < 1
            or any(len(of) != n for of in of_all)
            or any(len(of) not in (0, n) for of in (a.f1, a.abstained, a.given_up))
        ):
            raise ValueError(f"it does not say the same of each of {n} samples")
        if any(f1 is None and score is not None for f1, score in zip(a.f1, a.scores, strict=False)):
            raise ValueError("a sample with a score and without F1")
        if any(not 0 <= count < 2**31 for count in (*a.tokens, *a.searches)):
            raise ValueError("a count that no sample has")
        if any(value is not None and abs(value) > LARGEST for value in (*a.scores, *a.f1)):
            raise ValueError("a score that no sample has")
        if self._left is not None:
            question = self._left.pop(a.number, None)
            if question is None or (question.source, question.id) != (a.source, a.id):
                raise ValueError("it is of no question that is asked, or of one that was answered before")

    def append(self, answered: Answered) -> None:
        """Add a line; it survives this process."""
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(answered) + b"\n")

    def cut_torn_line(self) -> None:
        """Take away what a killed process had begun to write."""
        if not self._file.is_file():
            return
        data = self._file.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._file, whole)
