"""How much disk and Redis a run is said to need, by the numbers in its model and how they are trained."""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import Parameter

from cli.run.preflight import RUN_FOLDER_BYTES, Preflight
from services.learner.model.optimise import Optimiser
from shared.config import build
from shared.errors import UserError
from shared.model_files import parameters_of
from shared.settings import Learner

Usage = namedtuple("Usage", "total used free")
PARAMETERS = 300_000_000


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose safetensors say that they hold many numbers; nobody reads more than what they say."""
    monkeypatch.setattr("cli.run.preflight.parameters_of", lambda folder: PARAMETERS)
    return tmp_path


def preflight(folder: Path, **settings: Any) -> Preflight:
    tree = {"run": {"root": str(folder)}, "learner": {"keep_last": 2}} | settings
    return Preflight(build(tree))


@pytest.mark.parametrize(
    ("dtype", "how", "version", "checkpoint"),
    [
        ("float32", {}, 4, 12),
        ("bfloat16", {}, 2, 14),
        ("bfloat16", {"optimizer": "adamw8bit"}, 2, 8),
        ("float32", {"ranks": 2}, 4, 16),
        ("bfloat16", {"ranks": 2}, 2, 14),
    ],
)
def test_a_checkpoint_takes_what_its_types_and_its_optimiser_take(
    model: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, how: dict[str, Any], version: int, checkpoint: int
) -> None:
    it = preflight(model, model={"dtype": dtype}, learner={"keep_last": 2} | how)
    needed = PARAMETERS * (4 * version + 3 * checkpoint) + RUN_FOLDER_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed))
    it._disk(model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed - 1))
    with pytest.raises(UserError, match=f"4 published versions of {PARAMETERS * version / 2**30:.2f} GiB"):
        it._disk(model)


@pytest.mark.parametrize("transport", ["redis", "broadcast"])
def test_what_actors_receive_needs_room_where_they_put_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    version = 4 * PARAMETERS
    needed = 7 * version + 3 * 12 * PARAMETERS + RUN_FOLDER_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed - 1))
    travels = {"model": {"dtype": "float32"}, "weights": {"transport": transport}, "redis": {"url": "redis://h"}}
    with pytest.raises(UserError, match=r"run needs about .*, and 3 versions of 1\.12 GiB that actors receive"):
        preflight(model, **travels)._disk(model)
    preflight(model, **travels | {"actor": {"count": 0}})._disk(model)
    preflight(model, **travels | {"weights": {}})._disk(model)

    memory = Path("/dev/shm/headrace")
    free = {Path("/dev/shm"): 3 * version - 1}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, free.get(folder, needed - 1)))
    travels["weights"]["received"] = str(memory)
    with pytest.raises(UserError, match=r"/dev/shm has .*needs about .* \(3 versions of .*or set weights\.received"):
        preflight(model, **travels)._disk(model)
    free[Path("/dev/shm")] += 1
    preflight(model, **travels)._disk(model)


def test_a_run_that_goes_on_needs_room_for_what_it_has_not_written(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, checkpoint = 4 * PARAMETERS, 12 * PARAMETERS
    it = preflight(model, model={"dtype": "float32"})
    for path, size in (("weights/v0-1", version), ("checkpoints/step_1", 5 * checkpoint)):
        (it.config.run_dir / path).mkdir(parents=True)
        with (it.config.run_dir / path / "model.safetensors").open("wb") as file:
            file.truncate(size)  # a hole: it takes no disk
    needed = 3 * version + RUN_FOLDER_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed))
    with pytest.raises(UserError, match="the run needs about"):
        it._disk(model)
    it.resuming = True
    it._disk(model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed - 1))
    with pytest.raises(UserError, match="the run needs about"):
        it._disk(model)


def test_weights_through_redis_are_as_large_as_they_are_published(model: Path) -> None:
    redis = {"url": "redis://h", "max_memory_bytes": 3 * 4 * PARAMETERS}
    through = {"transport": "redis"}
    with pytest.raises(UserError, match="has no room for the 3 versions"):
        preflight(model, redis=redis, weights=through, model={"dtype": "float32"})._redis_memory(model)
    smaller = through | {"dtype": "bfloat16"}
    preflight(model, redis=redis, weights=smaller, model={"dtype": "float32"})._redis_memory(model)


def test_what_large_weights_cost_one_server_is_noted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.run.preflight.parameters_of", lambda folder: 7_600_000_000)
    settings = {"redis": {"url": "redis://h"}, "weights": {"transport": "redis"}, "model": {"dtype": "bfloat16"}}
    large = preflight(model, **settings)
    large._redis_memory(model)
    [said] = large.notes
    assert "fetches 14.16 GiB a step from one server, 12 s of a 10 Gbit/s network; 64 machines 905.99 GiB" in said
    adapters = preflight(model, **settings, learner={"lora_rank": 8})
    adapters._redis_memory(model)
    assert not adapters.notes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_optimiser_is_as_large_as_it_is_said_to_be(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = Parameter(torch.zeros(300, 1000, dtype=dtype))
    optimiser = Optimiser([weight], Learner(), steps=1)
    weight.grad = torch.ones_like(weight)
    optimiser.accumulate()
    optimiser.step(0)
    save_file({"weight": weight.detach()}, tmp_path / "model.safetensors")
    torch.save(optimiser.state(), tmp_path / "state.pt")
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert optimiser.checkpoint_bytes == pytest.approx(written, rel=0.01)


def test_the_numbers_of_a_model_are_counted_by_the_headers_of_its_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.bfloat16)}, tmp_path / "1.safetensors")
    save_file({"c": torch.zeros(2)}, tmp_path / "2.safetensors")
    (tmp_path / "3.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "4.safetensors").write_bytes(b"")
    assert parameters_of(tmp_path) == 24


@pytest.mark.parametrize(("written", "seconds"), [("90s", 90), ("1m30s", 90), ("1h", 3600), ("2.5s", 2.5), ("40", 40)])
def test_the_time_to_stop_is_read_as_compose_writes_it(written: object, seconds: float) -> None:
    assert build({"run": {"stop_s": written}}).run.stop_s == seconds


@pytest.mark.parametrize("written", ["", "soon", "1s", 1])
def test_times_that_are_none_or_too_short_are_refused(written: object) -> None:
    with pytest.raises(UserError, match=r"run\.stop_s"):
        build({"run": {"stop_s": written}})
