"""A run that is struck by every kind of fault comes to its end, its log keeps every rule, and it has learned as much.

Five minutes of faults, the form that runs with every change. The retriever's delay, and not the processor, decides how
long the run takes: it outlasts the faults on a faster machine too. The run that it is held against goes without faults
and without that delay.
"""

import json
from pathlib import Path

import pytest

from cli.chaos.schedule import KINDS, pairs
from tests.e2e.command import ATLAS, STOP_S, overrides
from tests.e2e.conftest import Start

# its limit puts it among the first files that are begun
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = 64
CONFIG = str(ATLAS.parent / "atlas.toml")
SETTINGS = overrides(
    run={"root": ".", "steps": STEPS},
    rollout={"group_size": 8},
    eval={"limit": 100, "every": 0},
    actor={"count": 2, "engine": "torch"},
    replay={"select": 2, "capacity": 12},
    learner={"batch": 4, "lr": 3e-4, "checkpoint_every": 3},
)
PLAN = ["--minutes", "5", "--every", "11", "--max-stop", "20", "--seed", "5"]


def test_a_run_that_is_struck_by_every_kind_of_fault_loses_nothing_and_learns_what_another_does(
    start: Start, folder: Path
) -> None:
    calm = start("up", CONFIG, *SETTINGS, *overrides(run={"name": "calm"}, replay={"port": 0}, search={"port": 0}))
    assert calm.wait(600) == 0, calm.said
    slowed = overrides(run={"name": "hurt"}, env={"latency": 3.5})
    command = start("chaos", CONFIG, *PLAN, "--against", "calm", "--json", *SETTINGS, *slowed)
    status = command.wait(1200)
    record = json.loads(command.stdout.read_text())
    assert (status, record["broken"], record["ended"]) == (0, [], ""), command.said
    command.assert_gone(STOP_S)
    assert (record["groups_lost"], record["groups_counted_twice"], record["steps"]) == (0, 0, STEPS)
    assert record["faults"] == record["faults_planned"] > len(pairs(search=True)), "the run ended before the faults"
    assert all(record["kinds"][kind]["times"] for kind in KINDS), record["kinds"]
    assert record["weights_refused"], "nobody read the version that was damaged"
    assert not any("did not leave" in note for note in record["notes"]), record["notes"]
    assert record["log"]["dead_letters"] == 0
    assert record["log"]["lineages"] > 1 and record["log"]["batches"] == STEPS
    assert json.loads((folder / "hurt" / "chaos.json").read_text()) == record
    low, high = record["em_change"]
    assert low <= 0 <= high and record["em_last"] > record["em_first"] + 0.1, "it has not learned what the other has"
    again = start("chaos", "--check", "hurt")
    assert again.wait(120) == 0, again.said
    assert "The durable log keeps every rule." in again.said
