"""A folder for a run, the command that runs it, and the policy that it trains."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.command import ATLAS, Command

Start = Callable[..., Command]


@pytest.fixture(scope="session")
def policy() -> Path:
    """The demo's policy: it knows the grammar, and answers a part of the questions."""
    return ATLAS / "policy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the module's run lives."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def start(folder: Path) -> Iterator[Start]:
    """Start `headrace WORDS...`; what a failed test leaves behind is killed."""
    commands: list[Command] = []

    def run(*words: str, environment: Mapping[str, str] | None = None) -> Command:
        commands.append(Command(folder, *words, environment=environment))
        return commands[-1]

    yield run
    for command in commands:
        command.kill()
