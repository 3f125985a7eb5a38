"""The same system with vLLM as the engine: what it samples is what the trainer computes, through swaps."""

import json
from pathlib import Path

import numpy as np
import pytest

from cli.run.recorder import read_records
from shared.versions import Version
from tests.e2e.command import ATLAS, overrides
from tests.e2e.conftest import Start
from tests.e2e.tap import Tap

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

STEPS, BATCH, QUESTIONS = 2, 4, 4
SETTINGS = overrides(
    run={"name": "vllm", "root": ".", "steps": STEPS},
    rollout={"group_size": 4, "deadline_s": 120},
    eval={"limit": QUESTIONS, "every": 0},
    actor={"count": 1, "engine": "vllm"},
    replay={"port": 0, "select": 2, "capacity": 8},
    search={"port": 0},
    learner={"batch": BATCH, "checkpoint_every": 1},
)


def test_a_run_with_vllm_trains_on_what_vllm_samples(start: Start, folder: Path, policy: Path) -> None:
    run_dir = folder / "vllm"
    tap = Tap(run_dir)
    command = start("up", str(ATLAS.parent / "atlas.toml"), f"--model.path={policy}", *SETTINGS)
    tap.wait_until_listening()
    assert command.wait(600) == 0, command.said
    command.assert_gone()
    traffic = tap.close()

    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["steps"], summary["groups_trained"], summary["eval_questions"]) == (STEPS, STEPS * BATCH, QUESTIONS)
    assert (summary["groups_lost"], summary["groups_failed"], summary["groups_trained_twice"]) == (0, 0, 0)
    assert summary["engine_gap"] < 1e-9
    assert summary["restarts"] == 0
    # the policy's embeddings are tied: the canary is what shows that a swap reached the output layer too
    assert json.loads((policy / "config.json").read_text())["tie_word_embeddings"]
    assert summary["weights_refused"] == 0
    swaps = [record["version"] for record in read_records(run_dir / "events.jsonl") if record["kind"] == "swap"]
    assert swaps[-1] == str(Version(0, STEPS))
    assert len(swaps) >= STEPS

    assert len(traffic.payloads) == STEPS * BATCH
    assert all(header.statuses.count("timed_out") == 0 for header in traffic.headers.values())
    l_gen = np.concatenate([payload.l_gen for payload in traffic.payloads.values()])
    assert np.isfinite(l_gen).all()
    assert sum(header.searches[0] for header in traffic.headers.values()) > 0
