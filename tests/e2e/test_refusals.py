"""What a user can get wrong is said in one sentence with exit status 2, and leaves neither a process nor a folder."""

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.command import ATLAS, Command, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ANSWER_S = 60.0
EXAMPLES = ATLAS.parent

Refusal = Callable[..., str]


@pytest.fixture
def refusal(start: Start, folder: Path, policy: Path) -> Refusal:
    """Run the demo's configuration with settings changed; the sentence it is refused with."""

    def run(**settings: dict[str, object]) -> str:
        usual = overrides(
            run={"name": "refused", "root": "."},
            model={"path": policy},
            actor={"engine": "torch"},
            replay={"port": 0},
            search={"port": 0},
        )
        before = contents(folder)
        command = start("up", str(EXAMPLES / "atlas.toml"), *usual, *overrides(**settings))
        assert command.wait(ANSWER_S) == 2, command.said
        command.assert_gone()
        assert contents(folder) - before == {command.stdout, command.stderr}  # the next try finds nothing in its way
        assert command.stdout.read_text() == ""
        return sentence(command)

    return run


def sentence(command: Command) -> str:
    """What it said: one line, one sentence, no traceback."""
    said = command.stderr.read_text()
    assert said.startswith("headrace: ")
    assert said.endswith((".\n", "?\n"))
    assert said.count("\n") == 1
    assert "Traceback" not in said
    assert not re.search(r"\.\s+[A-Z]", said), f"more than one sentence: {said}"
    return said.removeprefix("headrace: ").rstrip()


def contents(folder: Path) -> set[Path]:
    """All that lies in a folder."""
    return set(folder.rglob("*"))


@contextmanager
def listener() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def unused_port() -> int:
    """A port on which nobody answers."""
    with listener() as port:
        return port


def test_a_prompt_over_the_limit(refusal: Refusal) -> None:
    said = refusal(rollout={"max_prompt_tokens": 4})
    assert re.search(r"data\.train: the prompt of example \d+ \('.+'\) has (\d+) tokens, .* is 4: raise it to \1", said)


def test_an_empty_data_set(refusal: Refusal, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.touch()
    assert refusal(data={"train": file}) == f"{file} holds no prompts: a data set needs at least one row."


def test_an_unknown_key(refusal: Refusal) -> None:
    assert "unknown key 'learner.batches'; did you mean 'learner.batch'" in refusal(learner={"batches": 1})
    assert "here it is learner.lr" in refusal(learner={"learning_rate": 1})


def test_a_missing_corpus(refusal: Refusal) -> None:
    said = refusal(search={"port": 0, "corpus": "nowhere.jsonl"})
    assert re.search(r"search\.corpus = '.*nowhere\.jsonl' is not a file: write the path", said)


def test_redis_that_is_down(refusal: Refusal) -> None:
    port = unused_port()
    said = refusal(redis={"url": f"redis://:secret@127.0.0.1:{port}/0"})
    assert f"Redis at redis://127.0.0.1:{port}/0 did not answer" in said
    assert "secret" not in said


def test_a_port_in_use(refusal: Refusal) -> None:
    with listener() as port:
        assert f"replay.port = {port} is in use" in refusal(replay={"port": port})
        assert f"search.port = {port} is in use" in refusal(search={"port": port})


def test_a_model_directory_without_a_tokenizer(refusal: Refusal, policy: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(policy, bare, ignore=shutil.ignore_patterns("token*"))
    said = refusal(model={"path": bare})
    assert f"model.path = '{bare}' lacks a tokenizer" in said


def test_groups_of_one(refusal: Refusal) -> None:
    assert "'rollout.group_size'" in refusal(rollout={"group_size": 1})


def test_a_batch_that_is_no_multiple_of_its_mini_batches(refusal: Refusal) -> None:
    said = refusal(learner={"batch": 16, "mini_batch": 6})
    assert "learner.batch = 16 is not a multiple of learner.mini_batch = 6 (16 = 2 x 6 + 4)" in said
    assert "12" in said
    assert "18" in said


def test_a_refused_run_can_be_tried_again_under_its_name(refusal: Refusal, start: Start, policy: Path) -> None:
    refusal(rollout={"max_prompt_tokens": 4})
    usual = overrides(run={"name": "refused", "root": "."}, model={"path": policy}, replay={"port": 0})
    again = start("up", str(EXAMPLES / "atlas.toml"), *usual, "--search.port=0", "--dry-run")
    assert again.wait(ANSWER_S) == 0, again.said


@pytest.mark.parametrize(
    ("name", "batch", "select", "model"),
    [
        ("search-r1-3b", 128, 64, "Qwen/Qwen2.5-3B-Instruct"),
        ("search-r1-7b", 128, 64, "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_the_papers_configurations_are_accepted(start: Start, name: str, batch: int, select: int, model: str) -> None:
    command = start("up", str(EXAMPLES / f"{name}.toml"), "--dry-run")
    assert command.wait(ANSWER_S) == 0, command.said
    command.assert_gone()
    printed = command.stdout.read_text()
    assert f"batch = {batch}\n" in printed
    assert f"select = {select}\n" in printed
    assert f"path = {json.dumps(model)}\n" in printed
    assert "tau = 0.01\n" in printed
