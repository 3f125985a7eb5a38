"""Where a run's checkpoints lie: `<run>/checkpoints/step_<N>`, a Hugging Face folder each, with the trainer's state."""

from pathlib import Path

STATE = "trainer_state.pt"  # about three times the size of the weights


def folder(root: Path, step: int) -> Path:
    """The checkpoint of this step, whether or not it is there."""
    return root / f"step_{step}"


def steps(root: Path) -> list[int]:
    """The steps of the checkpoints in the folder, ascending, damaged ones included."""
    names = [p.name for p in root.glob("step_*") if p.is_dir()] if root.is_dir() else []
    return sorted(int(n[5:]) for n in names if n[5:].isdigit())
