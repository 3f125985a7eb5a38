"""`headrace tau CONFIG.toml`: the short run that it makes, and what it says of it."""

from pathlib import Path

import pytest

from cli.run.recorder import read_records
from shared.config import load
from tests.e2e.command import ATLAS, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 4


def test_a_configuration_without_a_gate_is_tried_under_one_and_judged(start: Start, folder: Path, policy: Path) -> None:
    settings = overrides(
        run={"root": "."},
        model={"path": policy},
        rollout={"group_size": 4},
        env={"latency": 0.01},
        actor={"count": 1},
        replay={"policy": "naive", "select": 2, "capacity": 12},
        learner={"batch": 4},
    )
    command = start("tau", str(ATLAS.parent / "atlas.toml"), "--steps", str(STEPS), *settings)
    assert command.wait(500) == 0, command.said
    command.assert_gone()
    said = " ".join(command.said.split())
    assert "replay.policy = 'naive' has no gate: the short run takes headroom_drift" in said
    assert "replay.tau = " in said and "suggested" in said
    assert "a latency of 0.01 s was added to each retrieval call" in said

    made = load(folder / "atlas-tau" / "config.toml", environ={})
    assert (made.run.steps, made.replay.policy, made.data.eval) == (STEPS, "headroom_drift", "")
    steps = read_records(folder / "atlas-tau" / "metrics.jsonl")
    assert [line["step"] for line in steps] == list(range(STEPS))
    assert f"atlas-tau: {sum(line['scanned'] for line in steps)} scanned groups" in said
