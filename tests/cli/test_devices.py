"""GPUs that a run would claim against those that the machine shows."""

from typing import Any

import pytest

from cli.run.devices import note, placing, refusal
from cli.run.preflight import Preflight
from shared.config import build
from shared.errors import UserError


def config_of(ranks: int = 1, actors: int = 1, parallel: int = 1, device: str = "auto", gpus: str = "auto") -> Any:
    return build(
        {
            "run": {"gpus": gpus},
            "actor": {"count": actors, "tensor_parallel": parallel},
            "learner": {"ranks": ranks, "device": device},
        }
    )


@pytest.mark.parametrize(
    ("settings", "gpus", "said"),
    [
        ({"ranks": 4}, 2, "learner.ranks = 4 needs a GPU for each and this machine shows 2"),
        ({"ranks": 2, "gpus": "share"}, 1, "learner.ranks = 2 needs a GPU for each and this machine shows 1"),
        ({"ranks": 2}, 2, "one actor (actor.tensor_parallel = 1) claim 3 GPUs and this machine shows 2"),
        ({"parallel": 4}, 4, "one actor (actor.tensor_parallel = 4) claim 5 GPUs and this machine shows 4"),
        ({"gpus": "lease"}, 1, "claim 2 GPUs and this machine shows 1"),
    ],
)
def test_a_run_that_could_never_begin_is_refused(settings: Any, gpus: int, said: str) -> None:
    assert said in str(refusal(config_of(**settings), gpus))


@pytest.mark.parametrize(
    ("settings", "gpus"),
    [
        ({"ranks": 4}, 0),  # on processors
        ({"ranks": 4, "device": "cpu", "actors": 2}, 2),
        ({"ranks": 2, "actors": 0}, 2),
        ({"ranks": 2}, 3),
        ({}, 1),  # shared
        ({"ranks": 2, "gpus": "share"}, 2),
        ({"ranks": 2, "parallel": 2, "actors": 3}, 8),
    ],
)
def test_a_run_whose_gpus_are_there_is_not(settings: Any, gpus: int) -> None:
    config = config_of(**settings)
    assert refusal(config, gpus) is None
    assert note(config, gpus) is None


def test_actors_that_will_find_no_gpu_are_told_of() -> None:
    config = config_of(ranks=2, actors=4, parallel=2)
    assert refusal(config, 8) is None
    assert str(note(config, 8)).startswith("actor.count = 4: this machine shows 8, which is enough for 3")


def test_gpus_that_nobody_would_take_are_told_of() -> None:
    assert "takes the first 1 of 2 GPUs" in str(note(config_of(gpus="share"), 2))
    assert note(config_of(gpus="share", parallel=2), 2) is None
    assert note(config_of(), 4) == "2 of 4 GPUs stay unused: --actor.count 3 uses them."
    assert note(config_of(parallel=2), 6) == "3 of 6 GPUs stay unused: --actor.count 2 uses 2 of them."


@pytest.mark.parametrize(
    ("settings", "gpus", "said"),
    [
        ({"actors": 3}, 4, "learner 0; actors 1-3, 1 each"),
        ({"ranks": 2, "parallel": 2, "actors": 9}, 8, "learner 0-1; actors 2-7, 2 each"),
        ({"actors": 1}, 4, "learner 0; actors 1, 1 each"),
        ({"device": "cpu"}, 2, "learner none; actors 0, 1 each"),
        ({"actors": 0}, 2, "learner 0"),
        ({"actors": 2}, 1, "learner 0; each actor 0"),
        ({"gpus": "share", "parallel": 2}, 4, "learner 0; each actor 0-1"),
    ],
)
def test_who_takes_which(settings: Any, gpus: int, said: str) -> None:
    assert placing(config_of(**settings), gpus) == said


def test_preflight_asks_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GPUS", "GPU-a,GPU-b")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match=r"learner\.ranks = 3"):
        Preflight(config_of(ranks=3))._gpus()
    dry = Preflight(config_of(ranks=3), dry_run=True)
    dry._gpus()
    assert "learner.ranks = 3" in dry.notes[0]
