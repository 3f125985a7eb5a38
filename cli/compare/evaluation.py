"""The held-out questions at the end of a run: k samples of each at the training temperature, Mean@k and Best@k."""

from pathlib import Path
from typing import Any

from cli.compare.study import Run, Study

EVALUATION = "evaluation.json"


def is_due(study: Study, run: Run) -> bool:
    """Whether the questions of this run are still to be asked."""
    return False


def evaluate(study: Study, run: Run, checkpoint: Path) -> None:
    """Ask them."""
    raise NotImplementedError


def quality_of(study: Study, run: Run) -> dict[str, Any]:
    """Mean@k and Best@k of a run, by question, then the mean over questions; empty where it was not evaluated."""
    return {}
