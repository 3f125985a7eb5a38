"""What `headrace eval` keeps of answers, and the figures it makes of them."""

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from cli.eval.progress import Progress
from cli.eval.report import print_report, report
from shared.errors import UserError
from shared.evaluation.records import Answered, AnswersFile, Job, Question, write_questions

JOB = Job(identity={}, model="m", shown_model="m", samples=2, temperature=1.0, seed=0)


def answered(number: int, source: str, right: list[bool | None], votes: list[int | None] | None = None) -> Answered:
    scores = [None if r is None else float(r) for r in right]
    n = len(right)
    return Answered(
        number=number,
        source=source,
        id=str(number),
        scores=scores,
        correct=[bool(r) for r in right],
        f1=scores,
        answers=["x"] * n,
        votes=votes or [int(not r) for r in right],
        statuses=["env_failed" if r is None else "finished" for r in right],
        tokens=[10] * n,
        searches=[1] * n,
    )


def test_the_report_does_not_depend_on_the_order_of_the_answers():
    answers = [answered(i, "ab"[i % 2], [i % 3 == 0, i % 2 == 0]) for i in range(12)]
    assert report(JOB, answers, [1, 2], {}) == report(JOB, answers[::-1], [1, 2], {})


def test_figures_are_by_source_macro_and_weighted():
    answers = [answered(0, "a", [True, False]), answered(1, "a", [False, False]), answered(2, "b", [True, True])]
    found = report(JOB, answers, [1, 2], {})
    value = {source: {m: e["value"] for m, e in row["metrics"].items()} for source, row in found["sources"].items()}
    assert value["a"] == pytest.approx(
        {"mean@2": 0.25, "best@1": 0.25, "majority@1": 0.25, "pass@1": 0.25, "f1": 0.25}
        | {"best@2": 0.5, "majority@2": 0.5, "pass@2": 0.5}
    )
    assert value["b"]["mean@2"] == 1.0
    assert found["macro"]["mean@2"]["value"] == pytest.approx(0.625)
    assert found["weighted"]["mean@2"]["value"] == pytest.approx(0.5)


def test_what_the_model_is_to_blame_for_counts_as_wrong_and_is_said_to():
    late = replace(answered(0, "a", [True, None, None]), statuses=["finished", "timed_out", "finished"])
    found = report(JOB, [late, answered(1, "a", [True, True, None])], [3], {})
    row = found["sources"]["a"]
    value = {name: estimate["value"] for name, estimate in row["metrics"].items()}
    assert (value["mean@2"], value["f1"]) == (pytest.approx((1 / 3 + 1) / 2),) * 2
    assert (value["best@3"], value["pass@3"]) == (1.0, 1.0), "of the question whose samples all count"
    assert (row["counted_wrong_samples"], row["left_out_samples"], row["incomplete"]) == (2, 1, 1)
    assert "counts as wrong" in found["without_a_score"]
    with (console := Console(width=200)).capture() as said:
        print_report(found, console)
    assert "Counted as wrong: 2 of 6 samples, which ran out of time or could not be scored." in said.get()
    assert "Left out: 1 of 6 samples" in said.get()


def test_rewards_above_one_are_not_shown_as_more_than_everything():
    rich = replace(answered(0, "a", [True, False]), scores=[7.5, 2.5], f1=[])
    found = report(JOB, [rich], [2], {"reward": {"function": "r.py:score"}})
    with (console := Console(width=100)).capture() as said:
        print_report(found, console)
    head, values, intervals, *_ = (line.split() for line in said.get().splitlines()[1:] if line.strip(" ─━╺╸"))
    assert head == ["source", "n", "Mean@2", "Best@2", "majority@2", "pass@2"]
    assert values == ["a", "1", "5", "7.5", "100.0", "100.0"]
    assert intervals[:3] == ["5", "to", "5"]
    assert "Mean and Best are of the reward, the others per cent" in said.get()
    shown = io.StringIO()
    Progress(1, shown, rewards=True).show([rich])
    assert shown.getvalue() == "eval: 1/1 questions, mean so far 5\n"


def test_what_the_reward_function_will_not_score_is_left_out():
    abstained = replace(answered(0, "a", [True, None, None]), statuses=["finished"] * 3, abstained=[False, True, False])
    row = report(JOB, [abstained], [1], {})["sources"]["a"]
    assert row["metrics"]["mean@2"]["value"] == 0.5
    assert (row["counted_wrong_samples"], row["left_out_samples"]) == (1, 1)


def test_a_question_without_samples_enough_is_left_out_and_counted():
    answers = [answered(0, "a", [True, None]), answered(1, "a", [False, False]), answered(2, "b", [None, None])]
    found = report(JOB, answers, [2], {})
    assert found["sources"]["a"]["metrics"]["best@2"]["value"] == 0.0
    assert found["sources"]["a"]["metrics"]["mean@2"]["value"] == 0.5
    assert (found["sources"]["a"]["incomplete"], found["sources"]["b"]["left_out_samples"]) == (1, 2)
    assert found["sources"]["b"]["metrics"] == {}


def test_what_became_of_the_samples_is_counted_by_source_and_printed():
    mathematics = [
        replace(
            answered(i, "sums", [True, False, False, None]),
            f1=[],
            answers=["1", "2^{9^{9}}", None, None],
            statuses=["finished", "finished", "truncated", "timed_out"],
            given_up=[False, True, False, False],
        )
        for i in range(3)
    ]
    found = report(JOB, [*mathematics, replace(answered(3, "b", [True, False]), f1=[])], [1], {})
    row = found["sources"]["sums"]
    names = ["samples", "answered_samples", "correct_samples", "truncated_samples", "timed_out_samples"]
    assert [row[name] for name in [*names, "given_up_samples"]] == [12, 6, 3, 3, 3, 3]
    assert [found["sources"]["b"][name] for name in [*names, "given_up_samples"]] == [2, 2, 1, 0, 0, 0]
    with (console := Console(width=100)).capture() as said:
        print_report(found, console)
    line = next(line for line in said.get().splitlines() if line.split()[:2] == ["sums", "12"])
    assert line.split() == ["sums", "12", "6", "3", "3", "3", "3"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"kind": "search", "latency": "uniform(1, 3)"}, "a latency of uniform(1, 3) s was added to each retrieval"),
        ({"kind": "search", "latency": ""}, "no latency was added to retrieval"),
        ({"kind": "single", "latency": ""}, None),
    ],
)
def test_a_report_says_what_latency_was_added(env: dict[str, str], said: str | None):
    found = report(JOB, [answered(0, "a", [True, False])], [1], {"env": env})
    with (console := Console(width=100)).capture() as printed:
        print_report(found, console)
    assert ("latency" in printed.get()) == (said is not None)
    assert said is None or said in printed.get()


def test_a_line_that_was_not_finished_is_asked_again(tmp_path: Path):
    question = Question(number=0, source="a", index=0, id="0", messages=[], ground_truth=["x"])
    write_questions(tmp_path, JOB, [question])
    file = AnswersFile(tmp_path)
    file.append(answered(0, "a", [True, True]))
    with (tmp_path / "answers.jsonl").open("ab") as raw:
        raw.write(b'{"number": 1, "sou')
    assert [a.number for a in AnswersFile(tmp_path).read()] == [0]
    file.cut_torn_line()
    file.append(answered(2, "a", [True, True]))
    assert [a.number for a in AnswersFile(tmp_path).read()] == [0, 2]
    with (tmp_path / "answers.jsonl").open("ab") as raw:
        raw.write(b"{}\n")
    with pytest.raises(
        UserError, match=r"is damaged in line 3 .* take the line out .*, or remove job.json, questions.jsonl"
    ):
        AnswersFile(tmp_path).read()


@pytest.mark.parametrize("wrong", [{"correct": [True]}, {"number": 1}, {"id": "other"}, {"tokens": [-1, 0]}], ids=str)
def test_an_answer_that_no_question_of_the_job_can_have_is_refused(tmp_path: Path, wrong: dict[str, Any]):
    question = Question(number=0, source="a", index=0, id="0", messages=[], ground_truth=["x"])
    write_questions(tmp_path, JOB, [question])
    AnswersFile(tmp_path).append(answered(0, "a", [True, True]))
    assert [a.number for a in AnswersFile(tmp_path, [question], JOB.samples).read()] == [0]
    AnswersFile(tmp_path).append(replace(answered(0, "a", [True, True]), **wrong))
    with pytest.raises(UserError, match="is damaged in line 2"):
        AnswersFile(tmp_path, [question], JOB.samples).read()
