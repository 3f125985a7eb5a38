"""Where a run's checkpoints lie: `<run>/checkpoints/step_<N>`, a Hugging Face folder each, with the trainer's state."""

from pathlib import Path

STATE = "trainer_state.pt"
MASTER_BYTES = 4  # of a parameter in float32, where the model's own is smaller
MOMENTS_BYTES = {"adamw": 8, "adamw8bit": 2}  # both moments of a parameter, by learner.optimizer


def size_of(parameters: int, bytes_each: int, optimizer: str, *, shards: bool = False) -> int:
    """Bytes of a checkpoint of so many trained parameters: the model's files, float32 masters, both moments.

    bytes_each: of a parameter in the model; 4: it is its own master, which only ranks with `shards` of it write beside.
    """
    masters = 0 if bytes_each == MASTER_BYTES and not shards else MASTER_BYTES
    return parameters * (bytes_each + masters + MOMENTS_BYTES[optimizer])


def folder(root: Path, step: int) -> Path:
    """The checkpoint of this step, whether or not it is there."""
    return root / f"step_{step}"


def steps(root: Path) -> list[int]:
    """The steps of the checkpoints in the folder, ascending, damaged ones included."""
    names = [p.name for p in root.glob("step_*") if p.is_dir()] if root.is_dir() else []
    return sorted(int(n[5:]) for n in names if n[5:].isdigit())
