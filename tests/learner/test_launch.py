"""What the ends of the ranks mean for the learner that started them."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.learner.__main__ import serve
from services.learner.ranks import launch
from shared.config import Config


@pytest.fixture
def ranks_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A script that every rank runs in the learner's place; it is told its RANK."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    script = tmp_path / "rank"
    script.touch(mode=0o755)
    monkeypatch.setattr(launch.sys, "executable", str(script))
    yield script
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "status"),
    [
        ("[ $RANK = 1 ] || exec sleep 0.5", 0),  # the other left first, as it was told to
        ("[ $RANK = 0 ] || exec sleep 60", 0),
        ("[ $RANK = 0 ] && sleep 0.1; exit 2", 2),
        ("[ $RANK = 0 ] && exec sleep 60; exit 1", 1),
        ("[ $RANK = 0 ] && exit 3; exec sleep 60", 1),
    ],
)
def test_the_status_is_that_of_rank_0_or_of_the_rank_that_failed(ranks_do: Path, does: str, status: int) -> None:
    ranks_do.write_text(f"#!/bin/sh\n{does}\n")
    assert launch.run_ranks(2, stop_s=2.0) == status


def test_the_gpus_are_free_as_soon_as_a_rank_has_failed(
    ranks_do: Path, config: Config, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_GPUS", "GPU-a,GPU-b")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    ranks_do.write_text("#!/bin/sh\n[ $RANK = 0 ] && exit 2; exec sleep 60\n")
    leased = config.run.model_copy(update={"gpus": "lease", "stop_s": 2.0})
    several = config.learner.model_copy(update={"ranks": 2, "device": "cuda"})
    with pytest.raises(SystemExit) as left:
        serve(config.model_copy(update={"run": leased, "learner": several}))
    assert left.value.code == 2
    assert client.keys("headrace:{gpus}:*") == []
