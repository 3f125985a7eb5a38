"""A run that trains adapters, through every process: what travels is small, and what is left is a model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cli.run.recorder import read_records
from shared.adapters import WEIGHTS
from tests.e2e.command import REPOSITORY, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

ARITH = REPOSITORY / "examples" / "arith"
STEPS = 4
SETTINGS = overrides(
    run={"name": "lora", "root": ".", "steps": STEPS},
    eval={"limit": 1, "every": 0},  # the last round begins with the last version, so that an actor has it
    rollout={"group_size": 4},
    replay={"port": 0, "select": 4, "capacity": 24},
    learner={"batch": 8, "checkpoint_every": 2, "lora_rank": 8, "lr": 1e-3, "warmup_steps": 0, "kl": 0.01},
)


def test_adapters_are_trained_published_and_saved(start: Start, folder: Path) -> None:
    command = start("up", str(REPOSITORY / "examples" / "arith.toml"), *SETTINGS)
    assert command.wait(600) == 0, command.said
    command.assert_gone()

    run_dir = folder / "lora"
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["steps"], summary["groups_lost"], summary["restarts"]) == (STEPS, 0, 0)
    assert summary["weights_refused"] == 0
    assert summary["engine_gap"] < 1e-8
    steps = read_records(run_dir / "metrics.jsonl")
    assert max(line["learner"]["kl"] for line in steps) > 0
    swaps = [record["version"] for record in read_records(run_dir / "events.jsonl") if record["kind"] == "swap"]
    assert swaps[-1] == f"0.{STEPS}"

    whole = (ARITH / "policy" / "model.safetensors").stat().st_size
    newest = run_dir / "weights" / f"v0000-{STEPS:08}"
    assert not list(newest.glob("model*"))
    assert (newest / WEIGHTS).stat().st_size < whole / 3  # of a policy this small a rank of 8 is much

    checkpoint, merged = run_dir / "checkpoints" / f"step_{STEPS}", folder / "merged"
    words = [sys.executable, "-m", "services.learner.weights.merge", str(checkpoint), str(merged)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tokens = torch.tensor([[3, 14, 15, 16, 4]])
    with torch.no_grad():
        base, trained, whole_model = (_logits(of, tokens) for of in (ARITH / "policy", checkpoint, merged))
    assert torch.allclose(trained, whole_model, atol=1e-4)
    assert not torch.allclose(trained, base, atol=1e-2)


def _logits(directory: Path, tokens: torch.Tensor) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model(input_ids=tokens).logits
