"""The GPU check's own steps, on a machine without a GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "gpu_check.sh"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, env=env, timeout=600)


def test_without_a_gpu_it_says_so_and_ends_with_2() -> None:
    done = run(CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: no NVIDIA GPU is seen on this machine, so nothing was checked.\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("settings", [(), ("--learner.lora_rank=2", "--learner.kl=0.1")], ids=["whole", "adapters"])
def test_every_step_works_on_a_cpu(settings: tuple[str, ...]) -> None:
    done = run("--device", "cpu", "--tiny", "--json", *settings)
    assert done.returncode == 0, done.stderr
    found = {line["what"]: line["number"] for line in map(json.loads, done.stdout.splitlines())}
    assert found["engine gap, mean (l_ref - l_gen)^2"] < 1e-9
    assert found["drift noise, mean d^2 of scoring twice"] < 1e-9
    canary = [found[f"canary, |d| {of}"] for of in ("in the mean", "of nine in ten tokens", "at most")]
    assert canary == sorted(canary) and canary[-1] < 1e-4
    speeds = ["generation", "training, packed", "training, padded to the longest", "scan of the same groups"]
    times = [
        "broadcast of a version, over gloo",
        "swap, engine stands still",
        "step with adamw",
        "step with adamw, offloaded",
    ]
    assert all(found[name] > 0 for name in speeds + times)
