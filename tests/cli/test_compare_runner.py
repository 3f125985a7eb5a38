"""What is refused before the first run of a study is trained."""

import json
from pathlib import Path

import pytest

from cli.compare import runner
from cli.compare.study import Study, read_study
from shared.errors import UserError

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
