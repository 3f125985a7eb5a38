"""`headrace eval` with every real process: killed and continued, against a run that trains, on mathematics."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from shared.weights import published
from tests.e2e.command import ATLAS, STOP_S, overrides
from tests.e2e.conftest import Start
from tests.tiny_model import write_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

HELD_OUT, CONFIG = ATLAS / "data" / "heldout.jsonl", ATLAS.parent / "atlas.toml"
QUESTIONS, SAMPLES = 12, 4
ASKED = ["--suite", str(HELD_OUT), "--k", str(SAMPLES), "--limit", str(QUESTIONS), "--json"]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "answers.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_killed_evaluation_goes_on_where_it_was(start: Start, folder: Path, policy: Path) -> None:
    words = ["eval", str(policy), "--config", str(CONFIG), *ASKED, "--out", str(folder / "killed")]
    few = overrides(actor={"groups": 1}, rollout={"group_size": 2})
    first = start(*words, *few)
    first.wait_until(lambda: len(lines_of(folder / "killed")) >= 3, "third answer", 180)
    first.signal(signal.SIGKILL)
    first.wait(10)
    first.assert_gone(within_s=10)
    before = lines_of(folder / "killed")
    assert len(before) < QUESTIONS

    second = start(*words)
    assert second.wait(180) == 0, second.said
    second.assert_gone()
    after = lines_of(folder / "killed")
    assert after[: len(before)] == before
    assert sorted(line["number"] for line in after) == list(range(QUESTIONS))
    found = json.loads(second.stdout.read_text())
    assert found == json.loads((folder / "killed" / "eval.json").read_text())
    assert set(found["sources"]) == {"atlas-1hop", "atlas-2hop"}
    assert 0.02 < found["weighted"][f"mean@{SAMPLES}"]["value"] < 0.7
    assert found["weighted"]["best@4"]["value"] >= found["weighted"]["majority@4"]["value"]
    assert all(len(line["scores"]) == SAMPLES and None not in line["scores"] for line in after)
    assert any(line["searches"][0] for line in after), "the real retriever was asked"

    third = start(*words)
    assert third.wait(60) == 0, third.said
    assert json.loads(third.stdout.read_text()) == found
    assert "loading" not in third.said, "all is answered: nothing is started"


@pytest.mark.vllm
def test_vllm_answers_through_the_real_retriever(start: Start, folder: Path, policy: Path) -> None:
    asked = ["--suite", str(HELD_OUT), "--k", "2", "--limit", "6", "--json", "--out", str(folder / "vllm")]
    command = start("eval", str(policy), "--config", str(CONFIG), "--actor.engine=vllm", *asked)
    assert command.wait(500) == 0, command.said
    command.assert_gone()
    found, lines = json.loads(command.stdout.read_text()), lines_of(folder / "vllm")
    assert (found["questions"], found["settings"]["actor"]["engine"]) == (6, "vllm")
    assert all(len(line["scores"]) == 2 and None not in line["scores"] for line in lines)
    assert sum(map(sum, (line["searches"] for line in lines))) > 0
    assert {status for line in lines for status in line["statuses"]} <= {"finished", "truncated"}


def test_ctrl_c_stops_everything_and_says_how_to_go_on(start: Start, folder: Path, policy: Path) -> None:
    words = ["eval", str(policy), "--config", str(CONFIG), *ASKED, "--out", str(folder / "stopped")]
    command = start(*words)
    command.wait_until(lambda: "loading the model" in command.said, "start", 120)
    command.signal(signal.SIGINT)
    assert command.wait(STOP_S) == 130
    command.assert_gone()
    assert "the same command goes on" in command.said
    assert command.stdout.read_text() == ""


def test_a_run_that_trains_is_evaluated_at_one_version_and_trains_on(start: Start, folder: Path, policy: Path) -> None:
    run_dir = folder / "training"
    settings = overrides(
        run={"name": "training", "root": ".", "steps": 5000},
        model={"path": policy},
        eval={"limit": 4, "every": 0},
        actor={"count": 1, "engine": "torch"},
        replay={"port": 0, "select": 2, "capacity": 12},
        rollout={"group_size": 4},
        search={"port": 0},
        learner={"batch": 4, "checkpoint_every": 5000},
    )
    run = start("up", str(CONFIG), *settings)
    run.wait_until(lambda: newest(run_dir) >= 3, "third version", 240)
    command = start("eval", str(run_dir), *ASKED)
    assert command.wait(300) == 0, command.said
    found = json.loads(command.stdout.read_text())
    name, _, version = found["model"].partition("@")
    lineage, number = map(int, version.split("."))
    assert Path(name) == run_dir
    assert (lineage, number >= 3) == (0, True)
    assert found["questions"] == QUESTIONS
    assert "starting the retriever" not in command.said, "the run's own retriever serves the right index"
    assert not (Path(found["folder"]) / "model").exists(), "what was held is given up"
    run.wait_until(lambda: newest(run_dir) >= number + 5, "training that goes on", 240)
    assert not (run_dir / "weights" / f"v0000-{number:08d}").exists(), "the run was free to delete the version"
    run.signal(signal.SIGINT)
    assert run.wait(STOP_S) == 130
    run.assert_gone()


def newest(run_dir: Path) -> int:
    """The number of the version published last; -1 before the first."""
    return max((version.number for version in published(run_dir / "weights")), default=-1)


def test_mathematics_is_asked_in_one_turn_and_needs_no_retriever(start: Start, folder: Path) -> None:
    rows = [{"question": f"what is {i} + 1 ?", "answer": f"it is so\n#### {i + 1}"} for i in range(5)]
    (folder / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    write_model(folder / "tiny", seed=0)
    words = ["--task", "math", "--suite", "sums.jsonl", "--k", "3", "--actor.engine=torch", "--out", "sums", "--json"]
    command = start("eval", "tiny", *words, "--rollout.max_turn_tokens=24")
    assert command.wait(180) == 0, command.said
    found = json.loads(command.stdout.read_text())
    assert found["sources"]["sums"]["questions"] == 5
    right = [[answer == str(line["number"] + 1) for answer in line["answers"]] for line in lines_of(folder / "sums")]
    assert [line["correct"] for line in lines_of(folder / "sums")] == right  # a digit in a box, now and then
    assert found["weighted"]["mean@3"]["value"] == pytest.approx(sum(map(sum, right)) / 15)
    assert "f1" not in found["weighted"]
    assert {status for line in lines_of(folder / "sums") for status in line["statuses"]} <= {"finished", "truncated"}
