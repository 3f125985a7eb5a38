"""The policies that change what is generated, or use single rollouts, through every process: a few steps of each."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.run.recorder import read_records
from tests.e2e.command import ATLAS, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, BATCH = 5, 4
Lines = list[dict[str, Any]]


def dapo(steps: Lines) -> None:
    assert all(line["fresh_groups"] == line["mixed_groups"] == BATCH for line in steps)
    assert steps[-1]["groups_generated"] == STEPS * BATCH + steps[-1]["groups_filtered"]
    assert steps[-1]["groups_filtered"] > 0


def bapo(steps: Lines) -> None:
    assert steps[-1]["groups_regenerated"] > 0
    assert steps[-1]["groups_generated"] == STEPS * BATCH + steps[-1]["groups_regenerated"]
    assert all(line["mixed_groups"] >= line["fresh_groups"] for line in steps)


def exgrpo(steps: Lines) -> None:
    assert steps[-1]["groups_regenerated"] > 0
    joined = [line for line in steps if line["replay_rollouts"]]
    assert joined and all(line["replay_rollouts"] == line["replay_groups"] for line in joined), "one response of each"


def rollout_advantage(steps: Lines) -> None:
    assert steps[0]["replay_rollouts"] == 0
    assert sum(line["replay_rollouts"] for line in steps) > 0
    assert steps[-1]["groups_generated"] == STEPS * BATCH


@pytest.mark.parametrize("shows", [dapo, bapo, exgrpo, rollout_advantage], ids=lambda check: check.__name__)
def test_a_policy_trains_through_every_process(
    shows: Callable[[Lines], None], start: Start, folder: Path, policy: Path
) -> None:
    name = shows.__name__
    rows = (ATLAS / "data" / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "one_hop.jsonl").write_text("".join(row for row in rows if json.loads(row)["hops"] == 1))
    settings = overrides(
        run={"name": name, "root": ".", "steps": STEPS},
        model={"path": policy},
        # of one hop the policy answers enough for exgrpo to begin
        data={"train": "one_hop.jsonl", "eval": ""},
        rollout={"group_size": 4},
        actor={"count": 1, "engine": "torch"},
        replay={"port": 0, "policy": name, "select": 2, "capacity": 16, "max_lag": 0, "ask_again_every": 1},
        search={"port": 0},
        learner={"batch": BATCH, "checkpoint_every": STEPS},
    )
    command = start("up", str(ATLAS.parent / "atlas.toml"), *settings)
    assert command.wait(600) == 0, command.said
    command.assert_gone()

    steps = read_records(folder / name / "metrics.jsonl")
    assert [line["step"] for line in steps] == list(range(STEPS))
    assert all(math.isfinite(line["learner"]["loss"]) for line in steps)
    summary = json.loads((folder / name / "summary.json").read_text())
    assert (summary["groups_lost"], summary["groups_trained_twice"], summary["restarts"]) == (0, 0, 0)
    shows(steps)
