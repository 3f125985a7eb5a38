"""Mathematics in one turn through every process, with a reward of two parts: what is stored goes by the answer."""

import json
from itertools import accumulate

import pytest

from cli.run.recorder import read_records
from tests.e2e.command import ATLAS, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, BATCH = 4, 8
SETTINGS = overrides(
    run={"name": "sums", "root": ".", "steps": STEPS},
    eval={"limit": 20, "samples": 1},
    replay={"port": 0, "select": 4, "capacity": 64},
    learner={"batch": BATCH, "checkpoint_every": STEPS},
)


def test_a_run_on_sums_stores_what_is_mixed_by_its_answers_though_every_box_is_rewarded(start: Start, folder):
    command = start("up", str(ATLAS.parent / "arith.toml"), *SETTINGS)
    assert command.wait(400) == 0, command.said
    command.assert_gone()
    summary = json.loads((folder / "sums" / "summary.json").read_text())
    assert (summary["steps"], summary["groups_trained"], summary["groups_lost"]) == (STEPS, STEPS * BATCH, 0)
    assert 0 < summary["em_first"] < 0.8
    steps = read_records(folder / "sums" / "metrics.jsonl")
    mixed = [step["mixed_groups"] for step in steps]
    assert [step["buffer_groups"] for step in steps] == list(accumulate(mixed))
    assert sum(mixed) > 0
    assert all(step["reward_mean"] > 0.8 * step["correct_share"] + 0.1 for step in steps), "boxes earn .2 each"
    assert sum(step["replay_groups"] for step in steps) > 0
