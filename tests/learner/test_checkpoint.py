"""Checkpoints on disk: whole or not there, verified on loading, kept by rule, and exact to the bit."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from services.learner.assemble import assemble, trainer_state
from services.learner.step import Trainer, train_step
from services.learner.stop import Stop
from services.learner.weights import checkpoint
from services.learner.weights.model_files import read_companions
from services.learner.weights.version_files import write_model
from shared.checkpoints import STATE, WAITS_S
from shared.config import Config, build
from shared.errors import UserError
from shared.messages import Cursor
from shared.versions import Version
from tests.fuzz.harness import claiming_at_most

CURSOR = Cursor(issued=9, lost=1, refilled=0, untrained=[6, 7])


def config_of(tmp_path: Path, policy_dir: Path, **learner: Any) -> Config:
    return build(
        {
            "run": {"name": "test", "root": str(tmp_path), "steps": 8},
            "model": {"path": str(policy_dir)},
            "learner": {"lr": 1e-2, "schedule": "cosine", "threads": 1, "device": "cpu", "micro_tokens": 64} | learner,
            "replay": {"policy": "none"},
        }
    )


def save(config: Config, trainer: Trainer, policy_dir: Path, step: int, lineage: int = 0) -> Path:
    companions = read_companions(policy_dir)
    return checkpoint.save(
        config.checkpoints_dir,
        step,
        lambda folder: write_model(trainer.model, companions, folder),
        trainer_state(trainer, Version(lineage, step), CURSOR),
    )


def batch(make_group: Any, step: int) -> tuple[list[Any], list[Any]]:
    return [make_group(f"old{step}", 50 + step, stored=0.05)], [make_group(f"new{step}", step)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resuming_gives_the_same_bits_as_no_interruption(
    tmp_path: Path, policy_dir: Path, make_group: Any, dtype: str
) -> None:
    config = config_of(tmp_path, policy_dir)
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
    straight = assemble(config, Stop()).trainer
    for step in range(6):
        if step == 3:
            save(config, straight, policy_dir, step)
        train_step(straight, step, *batch(make_group, step))

    resumed = assemble(config, Stop())
    assert (resumed.step, resumed.lineage, resumed.cursor) == (3, 0, CURSOR)
    for step in range(3, 6):
        train_step(resumed.trainer, step, *batch(make_group, step))
    for a, b in zip(straight.model.parameters(), resumed.trainer.model.parameters(), strict=True):
        assert a.dtype == getattr(torch, dtype)
        assert torch.equal(a, b)


def test_a_checkpoint_is_a_folder_that_transformers_loads(tmp_path: Path, policy_dir: Path) -> None:
    config = config_of(tmp_path, policy_dir)
    trainer = assemble(config, Stop()).trainer
    folder = save(config, trainer, policy_dir, 4)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(loaded.get_input_embeddings().weight, trainer.model.get_input_embeddings().weight)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight  # still tied
    assert PreTrainedTokenizerFast.from_pretrained(folder)("a c")["input_ids"] == [14, 16]
    assert (folder / "generation_config.json").read_bytes() == (policy_dir / "generation_config.json").read_bytes()


def test_latest_points_to_the_newest(tmp_path: Path, policy_dir: Path) -> None:
    config = config_of(tmp_path, policy_dir)
    trainer = assemble(config, Stop()).trainer
    for step in (2, 4):
        save(config, trainer, policy_dir, step)
        assert (config.checkpoints_dir / "latest").resolve().name == f"step_{step}"


def damage_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def damage_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def damage_state(folder: Path) -> None:
    (folder / checkpoint.STATE).unlink()


DAMAGES = [damage_weights, damage_manifest, damage_state]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_by_name(
    tmp_path: Path, policy_dir: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, policy_dir)
    trainer = assemble(config, Stop()).trainer
    save(config, trainer, policy_dir, 2)
    damage(save(config, trainer, policy_dir, 10))
    with caplog.at_level(logging.WARNING, "headrace"):
        found = checkpoint.newest(config.checkpoints_dir)
    assert found is not None
    assert found[0].name == "step_2"
    assert "step_10" in caplog.text


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_no_checkpoint_is_whole_any_more_nobody_goes_on_from_the_first_weights(
    tmp_path: Path, policy_dir: Path, damage: Any
) -> None:
    config = config_of(tmp_path, policy_dir)
    for newest in (with_two(config.checkpoints_dir), config.checkpoints_dir / "step_2"):
        damage(newest)
    with pytest.raises(UserError) as refused:
        assemble(config, Stop())
    said = str(refused.value)
    assert said.startswith(f"{config.checkpoints_dir} holds no whole checkpoint any more (step_4 ")
    assert "; step_2 is passed over: " in said and "backup" in said and "run.name" in said


UNREADABLE = Path("/proc/self/mem")  # a file that can be opened, and whose reading is an error of input and output


def fails(file: Path, aside: Path) -> Callable[[], object]:
    """Have the system fail to read a file, until the result is called."""
    whole = file.rename(aside / file.name)
    file.symlink_to(UNREADABLE)
    return lambda: whole.replace(file)


def with_two(root: Path) -> Path:
    """The newest of two checkpoints."""

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"weights")

    for step in (2, 4):
        newest = checkpoint.save(root, step, write, {"step": step})
    return newest


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", checkpoint.STATE])
def test_what_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    mended, waits = fails(with_two(tmp_path / "of a run") / name, tmp_path), list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            mended()

    found = checkpoint.newest(tmp_path / "of a run", wait)
    assert found is not None and found[1] == {"step": 4}
    assert waits == [1.0, 2.0]
    assert "Input/output error" in caplog.text


def test_the_state_alone_is_read_again(tmp_path: Path) -> None:
    folder = with_two(tmp_path / "of a run")
    mended, waits = fails(folder / checkpoint.STATE, tmp_path), list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        mended()

    assert checkpoint.read(folder, wait) == (folder, {"step": 4})
    assert waits == [1.0]


def test_what_stays_unreadable_is_passed_over_or_told_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, waits = with_two(tmp_path / "of a run"), list[float]()
    fails(folder / checkpoint.STATE, tmp_path)
    found = checkpoint.newest(tmp_path / "of a run", waits.append)
    assert found is not None and found[1] == {"step": 2}
    assert "step_4 is passed over: it is not complete, or cannot be read ([Errno 5]" in caplog.text
    with pytest.raises(UserError, match=r"cannot be read .*Input/output error"):
        checkpoint.read(folder, waits.append)
    assert waits == 2 * list(WAITS_S)


def test_a_file_that_is_not_there_is_waited_for_by_nobody(tmp_path: Path) -> None:
    folder, waits = with_two(tmp_path), list[float]()
    damage_manifest(folder)
    found = checkpoint.newest(tmp_path, waits.append)
    assert found is not None and found[1] == {"step": 2} and not waits


def test_a_write_that_died_half_way_is_never_seen(tmp_path: Path, policy_dir: Path) -> None:
    config = config_of(tmp_path, policy_dir)

    def die(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(config.checkpoints_dir, 5, die, {})
    assert checkpoint.newest(config.checkpoints_dir) is None
    assert any(config.checkpoints_dir.iterdir())
    checkpoint.tidy(config.checkpoints_dir)
    assert not any(config.checkpoints_dir.iterdir())


def test_pruning_keeps_the_newest_and_the_multiples(tmp_path: Path) -> None:
    for step in (2, 4, 5, 6, 8, 10, 12):
        checkpoint.save(tmp_path, step, lambda folder: None, {})
    checkpoint.prune(tmp_path, keep_last=2, keep_every=5, saved=12)
    assert checkpoint.steps(tmp_path) == [5, 10, 12]
    checkpoint.prune(tmp_path, keep_last=1, keep_every=0, saved=10)
    assert checkpoint.steps(tmp_path) == [10, 12], "those above the one just saved may be damaged"
    checkpoint.prune(tmp_path, keep_last=1, keep_every=0, saved=12)
    assert checkpoint.steps(tmp_path) == [12]
    assert checkpoint.newest(tmp_path) is not None


def test_an_old_checkpoint_that_cannot_be_deleted_stays_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (2, 4, 6):
        checkpoint.save(tmp_path, step, lambda folder: None, {})
    (tmp_path / ".deleted-step_2" / "held").mkdir(parents=True)
    checkpoint.prune(tmp_path, keep_last=1, keep_every=0, saved=6)
    assert checkpoint.steps(tmp_path) == [2, 6]
    assert "an old checkpoint is not deleted" in caplog.text


def test_a_state_that_claims_gigabytes_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(b"X\x00\x00PK" + bytes(1000))  # a string of 1.3 GB begins, in torch's older form
    with claiming_at_most(256), pytest.raises(UserError, match="no archive of"):
        checkpoint.read(tmp_path)
