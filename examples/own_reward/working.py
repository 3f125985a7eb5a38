"""The reward of examples/own-reward.toml: a right answer, and a little for writing the working down."""

from typing import Any

from shared.rewards import score

COLUMNS = ("ones:", "tens:", "hundreds:")
WEIGHTS = {"right": 1.0, "working": 0.2}


def working(text: str, ground_truth: list[str]) -> dict[str, Any]:
    """1 for the right number in a box, .2 for the whole working; only the number makes the answer right."""
    right = score("math", text, ground_truth).correct
    parts = {"right": float(right), "working": sum(column in text for column in COLUMNS) / len(COLUMNS)}
    return {"reward": sum(WEIGHTS[name] * value for name, value in parts.items()), "correct": right, **parts}
