"""A run that is struck by every kind of fault comes to its end, and its log keeps every rule."""

import json
from pathlib import Path

import pytest

from cli.chaos.schedule import KINDS, pairs
from tests.e2e.command import ATLAS, STOP_S, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 40
SETTINGS = overrides(
    run={"name": "hurt", "root": ".", "steps": STEPS},
    rollout={"group_size": 4},
    env={"latency": 2.0},  # so that the run outlasts the faults, on a fast machine too
    eval={"limit": 24, "every": 0},
    actor={"count": 2, "engine": "torch"},
    replay={"select": 2, "capacity": 12},
    learner={"batch": 4, "checkpoint_every": 3},
)
WORDS = ["--minutes", "2.5", "--every", "5.2", "--max-stop", "4", "--seed", "11", "--json"]


def test_a_run_that_is_struck_by_every_kind_of_fault_loses_nothing_and_counts_nothing_twice(
    start: Start, folder: Path
) -> None:
    command = start("chaos", str(ATLAS.parent / "atlas.toml"), *WORDS, *SETTINGS)
    status = command.wait(1400)
    record = json.loads(command.stdout.read_text())
    assert (status, record["broken"], record["ended"]) == (0, [], ""), command.said
    command.assert_gone(STOP_S)
    assert (record["groups_lost"], record["groups_counted_twice"], record["steps"]) == (0, 0, STEPS)
    assert all(record["kinds"][kind]["times"] for kind in KINDS), record["kinds"]
    assert record["faults"] >= len(pairs(search=True)) - 3
    assert record["log"]["lineages"] > 1 and record["log"]["batches"] == STEPS
    assert json.loads((folder / "hurt" / "chaos.json").read_text()) == record
    again = start("chaos", "--check", "hurt")
    assert again.wait(120) == 0, again.said
    assert "The durable log keeps every rule." in again.said
