"""Stored groups are dropped when what was computed from their rewards would be another number today."""

from pathlib import Path

import pytest

from shared import config
from shared.fingerprints import fingerprints


def marks(folder: Path, *overrides: str) -> dict[str, str]:
    return fingerprints(config.load(None, list(overrides), {}), folder)


@pytest.mark.parametrize(
    ("changed", "overrides"),
    [
        ("reward", ["--learner.loss", "dr_grpo"]),  # its advantages are not divided by the standard deviation
        ("reward", ["--learner.advantage", "mean"]),
        ("reward", ["--replay.headroom", "advantage"]),
        ("reward", ["--reward.overlong_tokens", "64"]),
        ("template", ["--rollout.temperature", "0.7"]),
    ],
)
def test_what_changes_stored_numbers_changes_a_fingerprint(tmp_path, changed, overrides):
    before, after = marks(tmp_path), marks(tmp_path, *overrides)
    assert {k for k in before if before[k] != after[k]} == {changed}


@pytest.mark.parametrize(
    "overrides", [["--learner.loss", "gspo"], ["--learner.lr", "1e-3"], ["--replay.tau", "1"], ["--replay.drift", "l1"]]
)
def test_what_is_decided_at_training_leaves_stored_groups_comparable(tmp_path, overrides):
    assert marks(tmp_path) == marks(tmp_path, *overrides)
