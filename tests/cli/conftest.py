"""A model folder that is complete, small and made in milliseconds, and a configuration that could run."""

import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from cli.main import main

TEMPLATE = (
    "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an activated environment: what is suggested begins with `headrace` alone."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """As on a full disk: within it no file of this process becomes longer than so many bytes."""

    @contextmanager
    def no_longer_than(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return no_longer_than


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """config.json with 512 positions, a tokenizer of words, weights nobody will load."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 512}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<end>"}))
    words = ["<unk>", "<end>", "<user>", "<assistant>", "who", "what", "where"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Three questions; the second is the longest, 12 words."""
    file = tmp_path / "train.jsonl"
    questions = ["who is it", "where " * 11 + "then", "what now"]
    file.write_text("".join(json.dumps({"question": q, "answer": "a"}) + "\n" for q in questions))
    return file


@pytest.fixture
def write_config(tmp_path: Path, model_dir: Path, data_file: Path) -> Callable[[str], Path]:
    """A TOML file that passes every check, with lines appended."""

    def write(more: str = "") -> Path:
        file = tmp_path / "run.toml"
        file.write_text(
            f"""
[run]
name = "test"
root = "{tmp_path / "runs"}"
[model]
path = "{model_dir}"
[data]
train = "{data_file}"
[env]
kind = "single"
prompt = "plain"
[rollout]
max_prompt_tokens = 64
max_turn_tokens = 64
max_tokens = 256
[replay]
select = 8
port = 0
[learner]
batch = 16
{more}
"""
        )
        return file

    return write


@pytest.fixture
def refused(
    write_config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run `headrace up` with overrides; the sentence, without the name in front."""

    def run(*overrides: str, more: str = "") -> str:
        before = set(tmp_path.rglob("*"))
        status = main(["up", str(write_config(more)), *overrides])
        said = capsys.readouterr()
        assert status == 2
        assert said.err.startswith("headrace: ")
        assert said.err.count("\n") == 1, "one sentence, one line"
        assert "Traceback" not in said.err
        left = set(tmp_path.rglob("*")) - before
        assert left <= {tmp_path / "run.toml"}
        return said.err.removeprefix("headrace: ").rstrip()

    return run


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
