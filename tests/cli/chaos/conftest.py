"""The log that faults are planted in."""

from pathlib import Path

import pytest

from tests.cli.chaos.logs import Log, made, read


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder behind a run whose services crashed."""
    return made(tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="session")
def clean(folder: Path) -> Log:
    """Its log, which keeps every rule."""
    return read(folder)
