"""The noise of Drift: what scoring the same tokens twice differs by, where a scan is cut otherwise."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from services.learner import drift_noise
from services.learner.model.policy import load_policy
from services.learner.step import NOISE_GROUPS, scan
from shared.config import Config, build
from shared.messages import Record

CPU = torch.device("cpu")


def with_replay(**replay: Any) -> Config:
    return build({"replay": replay})


def scanned(trainer: Any, groups: list[Any]) -> tuple[list[Record], list[Record]]:
    return scan(trainer, groups), scan(trainer, groups, noise=True)


@pytest.mark.parametrize("packed", [True, False])
def test_the_first_groups_of_a_scan_are_scored_again_in_other_cuts_and_nothing_else_changes(
    policy_dir: Path, make_group: Any, make_trainer: Any, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(load_policy(policy_dir, torch.float32, CPU, packed=packed))
    groups = [make_group(str(i), i, stored=0.05) for i in range(4)]
    plain, noisy = scanned(trainer, groups)
    assert [r.noise is not None for r in noisy] == [True] * NOISE_GROUPS + [False] * 2
    assert [msgspec.structs.replace(r, noise=None) for r in noisy] == plain
    assert all(r.noise < 1e-9 for r in noisy if r.noise is not None), "float32 has none to speak of"

    def cut_dependent(model: Any, rows: list[Any], temperature: float) -> torch.Tensor:
        return torch.full((sum(len(row.positions) for row in rows),), -1.0 - 0.01 * len(rows))

    monkeypatch.setattr("services.learner.step.logprobs", cut_dependent)
    _, noisy = scanned(trainer, groups)
    together = sum(len(g.rows) for g in groups)
    for record in noisy[:NOISE_GROUPS]:
        assert record.noise is not None
        assert 0 < math.sqrt(record.noise) / 0.01 < together, "cuts of fewer rollouts than were scanned together"
        assert math.sqrt(record.noise) / 0.01 > together / 2


def test_the_noise_of_a_step_is_told_once() -> None:
    assert [step for step in range(25) if drift_noise.is_due(step)] == [1, 11, 21]
    noise = drift_noise.Noise()
    assert noise.metrics() == {}
    empty = dict.fromkeys(Record.__struct_fields__, 0) | {"id": "a", "noise": None, "entropies": None, "measure": "l2"}
    for value in (1e-3, None, 3e-3):
        noise.take([msgspec.convert(empty | {"noise": value}, Record)])
    assert noise.metrics() == {"drift_noise": pytest.approx(2e-3)}
    assert noise.metrics() == {}


def test_noise_near_the_gate_is_warned_of() -> None:
    config = with_replay(tau=1e-3)
    assert drift_noise.warning(config, 0.9e-4) is None
    told = drift_noise.warning(config, 1.4e-3)
    assert told is not None and "1.40e-03, and replay.tau / 10 is 1.00e-04" in told
    squared = drift_noise.warning(with_replay(tau=1e-2, drift="l1"), 1.1e-5)
    assert squared is not None and "replay.tau^2 / 10 is 1.00e-05" in squared
    for policy in ("none", "naive"):
        assert drift_noise.warning(with_replay(tau=1e-3, policy=policy), 1.0) is None, "no gate, nothing to eat into"
