"""What is refused before the first run of a study is trained."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cli.compare import runner
from cli.compare.screen import StudyScreen
from cli.compare.study import Run, Study, read_study
from cli.eval import suites
from cli.eval.suites import open_suites, questions_of
from cli.main import main
from cli.run import plan, preflight
from shared.errors import UserError
from shared.evaluation.records import REPORT, Job, write_questions

STUDY = """
[study]
name = "s"
base = "run.toml"
seeds = [0]
fresh_groups = 32
samples = {samples}
root = "{root}"
[[arm]]
name = "b"
settings = {{ "replay.policy" = "none" }}
"""


def _study(tmp_path: Path, samples: int) -> Study:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(samples=samples, root=tmp_path / "studies"))
    return read_study(file)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://127.0.0.1:8000/"])
def test_the_runs_of_a_study_ask_retrievers_of_their_own(tmp_path: Path, write_config, data_file: Path, url: str):
    write_config()
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("[env]", f'[env]\nurl = "{url}"'))
    file = tmp_path / "study.toml"
    corpus = f'[common]\n"env.kind" = "search"\n"search.corpus" = "{data_file}"\n[[arm]]'
    file.write_text(STUDY.format(samples=0, root=tmp_path / "studies").replace("[[arm]]", corpus))
    study = read_study(file)
    assert plan.serves_search(runner._ready(study, study.runs[0]))


def test_the_search_r1_examples_may_be_compared(tmp_path: Path):
    base = Path(__file__).parents[2] / "examples" / "search-r1-3b.toml"
    file = tmp_path / "study.toml"
    text = STUDY.format(samples=0, root=tmp_path / "studies").replace("run.toml", str(base))
    file.write_text(text.replace("fresh_groups = 32", "fresh_groups = 128"))
    runner.check(read_study(file))


def test_held_out_questions_are_there_before_anything_is_trained(tmp_path: Path, write_config):
    write_config()
    with pytest.raises(UserError, match=r"arm 'b': data\.eval is empty"):
        runner.check(_study(tmp_path, 2))
    runner.check(_study(tmp_path, 0))


def test_held_out_questions_that_are_too_long_are_found_before_anything_is_trained(tmp_path: Path, write_config):
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"question": "where " * 200, "answer": "a"}) + "\n")
    write_config()
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("[data]", f'[data]\neval = "{held_out}"'))
    with pytest.raises(UserError, match=r"data\.eval: the prompt of example 1"):
        runner.check(_study(tmp_path, 2))
    runner.check(_study(tmp_path, 0))


def test_a_study_goes_on_when_nobody_reads_its_lines_any_more(tmp_path: Path, write_config):
    write_config()
    study = _study(tmp_path, 0)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        screen = StudyScreen(study, stream, {})
        screen.begin(study.runs[0])
        screen.end(study.runs[0])
        screen.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # what it still holds goes nowhere when it is closed


def test_nothing_is_trained_for_held_out_questions_that_are_not_there(tmp_path: Path, write_config):
    write_config()
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("[data]", f'[data]\neval = "{tmp_path / "gone.jsonl"}"'))
    study = _study(tmp_path, 2)
    screen = StudyScreen(study, io.StringIO(), {})
    with pytest.raises(UserError, match=r"gone\.jsonl"):
        runner.make_all(study, screen)
    screen.close()
    assert not study.runs[0].config.run_dir.exists()


def test_nothing_is_trained_where_the_held_out_questions_of_a_later_arm_are_not_there(tmp_path: Path, write_config):
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"question": "who is it", "answer": "a"}) + "\n")
    write_config()
    file = tmp_path / "study.toml"
    later = f'[common]\n"data.eval" = "{held_out}"\n[[arm]]\nname = "b"\n[[arm]]\nname = "c"\n'
    text = STUDY.format(samples=2, root=tmp_path / "studies").partition("[[arm]]")[0] + later
    file.write_text(text + f'settings = {{ "data.eval" = "{tmp_path / "gone.jsonl"}" }}\n')
    study = read_study(file)
    screen = StudyScreen(study, io.StringIO(), {})
    with pytest.raises(UserError, match=r"gone\.jsonl"):
        runner.make_all(study, screen)
    screen.close()
    assert not study.folder.exists()


class _Begun(Exception):
    pass


class _Screen(StudyScreen):
    def begin(self, run: Run) -> None:
        raise _Begun


def test_held_out_questions_are_opened_once_before_the_first_run_begins(
    tmp_path: Path, write_config, monkeypatch: pytest.MonkeyPatch
):
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"question": "who is it", "answer": "a"}) + "\n")
    write_config()
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("[data]", f'[data]\neval = "{held_out}"'))
    study, opened = _study(tmp_path, 2), []
    for module in (preflight, suites):

        def noted(source: str, whole_rows: bool = False, real: Any = module.open_prompts) -> Any:
            opened.append(source)
            return real(source, whole_rows=whole_rows)

        monkeypatch.setattr(module, "open_prompts", noted)
    runner.check(study)
    with pytest.raises(_Begun):
        runner.make_all(study, _Screen(study, io.StringIO(), {}))
    assert opened.count(str(held_out)) == 1


@pytest.fixture
def asked(tmp_path: Path, write_config) -> Study:
    """A study whose one run is trained and was asked the questions of held.jsonl."""
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"question": "who is it", "answer": "a"}) + "\n")
    write_config()
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("[data]", f'[data]\neval = "{held_out}"'))
    study = _study(tmp_path, 2)
    (run,) = study.runs
    folder = run.config.run_dir / "evals" / "k2"
    folder.mkdir(parents=True)
    (run.config.run_dir / "config.toml").write_text(runner._ready(study, run).to_toml())
    (run.config.run_dir / runner.TRAINED).write_text('{"seconds": 1.0}')
    job = Job(identity={}, model="m", shown_model="m", samples=2, temperature=1.0, seed=0)
    write_questions(folder, job, questions_of(open_suites([str(held_out)]), 0))
    (folder / REPORT).write_text('{"weighted": {}, "sources": {}}')
    return study


def test_other_held_out_questions_are_not_mixed_into_a_study(
    asked: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    runner.check(asked)
    (tmp_path / "held.jsonl").write_text(json.dumps({"question": "who was it", "answer": "a"}) + "\n")
    with pytest.raises(UserError, match=r"was asked other questions than those of data\.eval"):
        runner.check(asked)
    assert main(["compare", str(tmp_path / "study.toml"), "--report-only"]) == 2
    assert "was asked other questions than those of data.eval" in capsys.readouterr().err


def test_a_run_that_was_asked_needs_its_held_out_questions_no_more(asked: Study, tmp_path: Path):
    (tmp_path / "held.jsonl").unlink()
    runner.check(asked)
    assert runner.is_made(asked, asked.runs[0])
    (asked.runs[0].config.run_dir / "evals" / "k2" / REPORT).unlink()
    with pytest.raises(UserError, match=r"held\.jsonl"):
        runner.check(asked)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"weighted": {}}'])
def test_a_run_whose_report_cannot_be_read_is_asked_again(asked: Study, content: str):
    (asked.runs[0].config.run_dir / "evals" / "k2" / REPORT).write_text(content)
    assert not runner.is_made(asked, asked.runs[0])


def test_questions_that_cannot_be_read_are_told_with_what_to_do(asked: Study):
    folder = asked.runs[0].config.run_dir / "evals" / "k2"
    (folder / "questions.jsonl").write_text("{")
    with pytest.raises(UserError, match=f"cannot be read .*: remove job.json, .* in {folder} to have everything"):
        runner.check(asked)
