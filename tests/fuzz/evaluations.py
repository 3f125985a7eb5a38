"""The folder of an evaluation: a job, questions and answers that go on, figures of them, or one sentence."""

import io
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import msgspec
from hypothesis import strategies as st
from rich.console import Console

from cli.eval.folder import claim
from cli.eval.progress import Progress
from cli.eval.report import print_report, report
from shared.errors import UserError
from shared.evaluation.records import (
    ANSWERS,
    JOB,
    QUESTIONS,
    Answered,
    AnswersFile,
    Job,
    Question,
    read_job,
    read_questions,
    write_questions,
)
from tests.fuzz.folders import altered
from tests.fuzz.harness import Target
from tests.fuzz.made import near

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-fuzz-")) / "evaluation"
THE_JOB = Job(identity={"model": "m"}, model="m", shown_model="m", samples=2, temperature=1.0, seed=0)
ASKED = [
    Question(
        number=n,
        source=f"s{n % 2}",
        index=n,
        id=f"q{n}",
        messages=[{"role": "user", "content": "q"}],
        ground_truth=["a"],
    )
    for n in range(3)
]
_STRANGE = [b"\n", b"\r", b"\xff", b"[" * 2000, b"1" * 5000, b"1e999", b"NaN", b"null", b"\\ud800", b"{}\n"]


def _answer(question: Question) -> Answered:
    return Answered(
        number=question.number, source=question.source, id=question.id, scores=[1.0, None], correct=[True, False],
        f1=[1.0, None], answers=["a", None], votes=[0, None], statuses=["finished", "timed_out"], tokens=[5, 9],
        searches=[1, 0], abstained=[False, False], given_up=[False, False], texts=["x"],
    )  # fmt: skip


@cache
def _files() -> dict[str, bytes]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_questions(FOLDER, THE_JOB, ASKED)
    file = AnswersFile(FOLDER)
    for question in ASKED[:2]:
        file.append(_answer(question))
    return {name: (FOLDER / name).read_bytes() for name in (JOB, QUESTIONS, ANSWERS)}


@st.composite
def evaluations(draw: st.DrawFn) -> tuple[str, bytes]:
    """One file of an evaluation, and what it holds instead."""
    name = draw(st.sampled_from(sorted(_files())))
    data = _files()[name]
    if draw(st.booleans()):
        return name, draw(near(st.just(data), _STRANGE))
    lines = [json.loads(data)] if name == JOB else [json.loads(line) for line in data.splitlines()]
    other = draw(st.just(lines) | altered(lines))
    return name, b"".join(json.dumps(line).encode() + b"\n" for line in (other if isinstance(other, list) else [other]))


def check_evaluation(case: tuple[str, bytes]) -> bool:
    """True where it goes on: what is answered gives figures, and what is not is asked."""
    files = _files() | dict([case])
    shutil.rmtree(FOLDER)
    FOLDER.mkdir()
    for name, data in files.items():
        (FOLDER / name).write_bytes(data)
    try:
        claim(FOLDER, THE_JOB, ASKED, fresh=False)
        job, questions = read_job(FOLDER), read_questions(FOLDER)
        assert job is not None and questions == ASKED
        file = AnswersFile(FOLDER, questions, job.samples)
        answers = file.read()
        file.cut_torn_line()
        done = {answered.number for answered in answers}
        for question in questions:
            if question.number not in done:
                file.append(_answer(question))
        answers += file.read()
    except UserError as error:
        assert str(error).strip() and len(str(error)) < 1000
        return False
    assert sorted(answered.number for answered in answers) == [question.number for question in ASKED]
    Progress(len(ASKED), io.StringIO()).show(answers)
    found = report(THE_JOB, answers, [1, 2], {})
    json.dumps(found, allow_nan=False)
    print_report(found, Console(file=io.StringIO(), markup=False))
    msgspec.json.encode(answers)
    return True


TARGETS = [Target("evaluations", st.deferred(evaluations), check_evaluation, cost=20, warm=_files)]
