"""What keeps a run from going on is said in one sentence before anything starts, and what does not is let through."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import up
from cli.main import main
from cli.run import questions, untrained
from cli.run.preflight import Preflight
from shared.checkpoints import STATE
from shared.weights import MANIFEST, digest_of

Capture = pytest.CaptureFixture[str]
NOTED = "note: data."


@pytest.fixture
def run_dir(write_config: Callable[..., Path]) -> Path:
    """The folder of a run that was stopped before its first checkpoint."""
    config = up.resolve(str(write_config()), None, [])
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.toml").write_text(config.to_toml())
    preflight = Preflight(config, dry_run=True)
    preflight.check()
    questions.keep(config.run_dir, preflight.questions)
    (config.run_dir / "events.jsonl").write_text('{"kind": "session", "time": 0.0}\n')
    return config.run_dir


def saved(run_dir: Path, step: int) -> Path:
    """A whole checkpoint, and the events by which it is known."""
    folder = run_dir / "checkpoints" / f"step_{step}"
    folder.mkdir(parents=True)
    for name in (STATE, "model.safetensors"):
        (folder / name).write_bytes(b"of step %d" % step)
    digest, size = digest_of(folder)
    (folder / MANIFEST).write_text(json.dumps({"step": step, "digest": digest, "size": size}))
    with (run_dir / "events.jsonl").open("a") as events:
        for number, seconds in ((step - 1, 0.0), (step, 0.1)):
            record = {"kind": "step", "time": 1.0, "step": number, "learner": {"checkpoint_s": seconds}}
            events.write(json.dumps(record) + "\n")
    return folder


def refusal(run_dir: Path, capsys: Capture, *overrides: str) -> str:
    """The sentence with which the run is not resumed."""
    before = {path: path.lstat().st_mtime_ns for path in run_dir.rglob("*")}
    assert main(["up", "--resume", str(run_dir), *overrides]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("headrace: ") and said.err.count("\n") == 1 and not said.out
    assert {path: path.lstat().st_mtime_ns for path in run_dir.rglob("*")} == before, "nothing was written"
    return said.err.removeprefix("headrace: ").rstrip()


def may_go_on(run_dir: Path, capsys: Capture, *overrides: str) -> str:
    """What is noted of a run that may be resumed."""
    assert main(["up", "--resume", str(run_dir), "--dry-run", *overrides]) == 0
    return capsys.readouterr().out


def test_a_run_without_a_whole_checkpoint_is_not_resumed(run_dir: Path, capsys: Capture) -> None:
    for step in (2, 4):
        (saved(run_dir, step) / "model.safetensors").write_bytes(b"of another!")
    said = refusal(run_dir, capsys)
    assert said.startswith(f"{run_dir / 'checkpoints'} holds no whole checkpoint any more (step_4 is passed over: its ")
    assert said.endswith("): put one back from a backup, or start a new run under another run.name.")


def test_a_run_whose_checkpoints_were_deleted_is_not_resumed(run_dir: Path, capsys: Capture) -> None:
    saved(run_dir, 2).rename(run_dir / "elsewhere")
    assert f"{run_dir / 'checkpoints'} holds no checkpoint any more" in refusal(run_dir, capsys)


def test_a_run_that_was_stopped_before_its_first_checkpoint_goes_on(run_dir: Path, capsys: Capture) -> None:
    may_go_on(run_dir, capsys)
    (run_dir / "checkpoints" / ".step_2.77").mkdir(parents=True)  # killed while it wrote the first
    may_go_on(run_dir, capsys)


def test_an_older_whole_checkpoint_is_gone_on_from(run_dir: Path, capsys: Capture) -> None:
    saved(run_dir, 2)
    (saved(run_dir, 4) / STATE).unlink()
    assert "step_4 is passed over" in may_go_on(run_dir, capsys)


@pytest.mark.parametrize("name", ["checkpoints", "weights", "received", "logs", "redis"])
@pytest.mark.parametrize("dangling", [False, True], ids=["file", "link"])
def test_what_lies_where_a_folder_belongs(run_dir: Path, capsys: Capture, name: str, dangling: bool) -> None:
    there = run_dir / name
    there.symlink_to("/nowhere") if dangling else there.touch()
    said = refusal(run_dir, capsys, "--weights.transport", "redis")
    assert said == f"{there} is no folder, and the run needs one at {there}: move it away."


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", ".lock"])
def test_a_folder_where_a_file_belongs(run_dir: Path, capsys: Capture, name: str) -> None:
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).mkdir()
    assert refusal(run_dir, capsys) == f"{run_dir / name} is a folder, and the run keeps a file there: move it away."


def test_a_configuration_that_was_emptied_lost_or_replaced(run_dir: Path, capsys: Capture) -> None:
    file = run_dir / "config.toml"
    file.write_text("\n")
    assert refusal(run_dir, capsys).startswith(
        f"{file} is empty, and the run's own configuration belongs there: put it "
    )
    file.unlink()
    assert refusal(run_dir, capsys).startswith(f"{file} is not there, and the run's own configuration belongs there: ")
    file.mkdir()
    assert refusal(run_dir, capsys).startswith(f"{file} is a folder, and the run's own configuration belongs there: ")


def test_the_configuration_that_a_dry_run_prints_brings_a_run_back(
    run_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    (run_dir / "config.toml").write_text("")
    assert main(["up", str(tmp_path / "run.toml"), "--dry-run"]) == 0
    (run_dir / "config.toml").write_text(capsys.readouterr().out)
    may_go_on(run_dir, capsys)


def test_training_data_that_became_longer_is_refused_and_taken_under_another_name(
    run_dir: Path, data_file: Path, capsys: Capture
) -> None:
    assert NOTED not in may_go_on(run_dir, capsys)
    before = data_file.read_text()
    data_file.write_text(before + before)
    said = refusal(run_dir, capsys)
    assert said.startswith(f"data.train: {data_file} has 6 rows, and had 3 when the run was started, so ")
    assert said.endswith(
        ": put the file back, or, to go on with the new one, give it another name and add --data.train NAME."
    )
    other = data_file.rename(data_file.with_name("other.jsonl"))
    data_file.write_text(before)
    assert NOTED not in may_go_on(run_dir, capsys), "put back"
    assert f"# note: data.train: the questions in {other} are not those of 3 rows in {data_file}" in may_go_on(
        run_dir, capsys, "--data.train", str(other)
    )
    other.write_text(before)
    assert NOTED not in may_go_on(run_dir, capsys, "--data.train", str(other)), "the same, elsewhere"


def test_questions_that_changed_in_their_place_are_noted(run_dir: Path, data_file: Path, capsys: Capture) -> None:
    text = data_file.read_text()
    data_file.write_text(text.replace("who is it", "who are you"))
    assert f"data.train: the questions in {data_file} are not those of 3 rows" in may_go_on(run_dir, capsys)
    (run_dir / questions.QUESTIONS).write_text("[" * 100_000)  # nothing that could be compared
    assert NOTED not in may_go_on(run_dir, capsys)


def test_held_out_questions_may_change_and_that_is_noted(run_dir: Path, data_file: Path, capsys: Capture) -> None:
    was = questions.Mark(str(data_file), "", 2)
    marks = questions.kept(run_dir)
    questions.keep(run_dir, {**marks, "data.eval": was})
    said = may_go_on(run_dir, capsys, "--data.eval", str(data_file))
    assert "data.eval: the questions in" in said and "scores from here on are not comparable" in said


def test_what_is_kept_of_the_questions_does_not_block_the_name_of_a_run_that_trained_nothing(run_dir: Path) -> None:
    (run_dir / "redis").mkdir()
    assert untrained.is_untrained(run_dir)
    untrained.clear(run_dir)
    assert not any(run_dir.iterdir())
