"""`headrace up` with every real process: stopped by Ctrl-C, killed, resumed, finished. The policy is a random one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.plan import PACKAGE_ROOT
from cli.recorder import read_records

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

STOP_S = 10.0
STEPS = 4


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's architecture with random weights."""
    import torch

    from examples.atlas.tokenizer import build_tokenizer
    from examples.atlas.warm_start import build_model, save

    folder = tmp_path_factory.mktemp("model") / "policy"
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    save(build_model(tokenizer), tokenizer, folder)
    return folder


class Command:
    """The command as a process, writing to a file."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.output = folder / "output"
        with self.output.open("ab") as file:
            command = [sys.executable, "-P", "-m", "cli.main", *words]
            # a session of its own, as a shell gives each command: Ctrl-C reaches this process alone
            self.process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, start_new_session=True)

    def wait_for(self, condition: Callable[[], bool], what: str, within_s: float = 180.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, f"it ended before {what}: {self.output.read_text()}"
            assert time.monotonic() < deadline, f"no {what} within {within_s} s: {self.output.read_text()}"
            time.sleep(0.1)

    def end(self, number: signal.Signals) -> tuple[int, float]:
        """(exit status, seconds it took)."""
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        return status, time.monotonic() - began


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start the command; whatever is left at the end of the test is killed."""
    commands: list[Command] = []

    def run(*words: str) -> Command:
        commands.append(Command(tmp_path, *words))
        return commands[-1]

    yield run
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()
    for pid in processes_of(tmp_path / "runs" / "x"):
        os.kill(pid, signal.SIGKILL)


def up(policy: Path) -> list[str]:
    words = ["up", str(PACKAGE_ROOT / "examples" / "atlas.toml"), "--run.name", "x", "--run.steps", str(STEPS)]
    words += ["--model.path", str(policy), "--actor.engine", "torch", "--eval.limit", "8", "--eval.every", "0"]
    words += [
        "--learner.checkpoint_every",
        "1",
        "--learner.batch",
        "4",
        "--replay.select",
        "2",
        "--replay.capacity",
        "8",
    ]
    return [*words, "--search.port", "0", "--replay.port", "0", "--rollout.group_size", "4"]


def test_ctrl_c_leaves_a_run_that_goes_on(policy: Path, tmp_path: Path, start: Callable[..., Command]) -> None:
    run_dir = tmp_path / "runs" / "x"
    first = start(*up(policy))
    first.wait_for(lambda: (run_dir / "metrics.jsonl").is_file(), "first step")
    status, seconds = first.end(signal.SIGINT)
    assert status == 130
    assert seconds < STOP_S
    assert processes_of(run_dir) == {}
    assert "headrace up --resume runs/x" in first.output.read_text()

    second = start("up", "--resume", "runs/x")
    assert second.process.wait(timeout=240) == 0, second.output.read_text()
    assert processes_of(run_dir) == {}
    assert [r["step"] for r in read_records(run_dir / "metrics.jsonl")] == list(range(STEPS))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["steps"], summary["groups_lost"], summary["groups_trained_twice"]) == (STEPS, 0, 0)
    assert summary["eval_questions"] == 8
    assert summary["finished"]
    assert summary["peak_memory_bytes"] < 4 * 2**30
    assert "Before training" in (run_dir / "samples.md").read_text()
    assert (run_dir / "curves.png").stat().st_size > 10_000

    (run_dir / "curves.png").unlink()  # as if Ctrl-C had come while it was drawn
    third = start("up", "--resume", "runs/x")
    assert third.process.wait(timeout=60) == 0, third.output.read_text()
    said = " ".join(third.output.read_text().split())
    assert f"The run in runs/x has trained all of its {STEPS} steps; go on with --run.steps {2 * STEPS}" in said
    assert "EM on held-out questions" in said
    assert (run_dir / "curves.png").stat().st_size > 10_000
    assert json.loads((run_dir / "summary.json").read_text()) == summary

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run_dir / "final")
    assert sum(p.numel() for p in model.parameters()) > 400_000
    secret = (run_dir / "redis" / "url").read_text().split(":")[2].partition("@")[0]
    readable = [
        f for f in run_dir.rglob("*") if f.is_file() and f.parent.name != "redis" and f.suffix != ".safetensors"
    ]
    assert [f for f in readable if secret.encode() in f.read_bytes()] == []


def test_nothing_outlives_a_command_that_is_killed(policy: Path, tmp_path: Path, start: Callable[..., Command]) -> None:
    run_dir = tmp_path / "runs" / "x"
    command = start(*up(policy))
    command.wait_for(lambda: len(processes_of(run_dir)) >= 5, "processes")
    command.end(signal.SIGKILL)
    deadline = time.monotonic() + STOP_S
    while left := processes_of(run_dir):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def processes_of(run_dir: Path) -> dict[int, str]:
    """The live processes of a run: services carry its configuration in their environment, Redis works in its folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            inside = f"HEADRACE_CONFIG={run_dir}/config.toml".encode() in environment
            if inside or (entry / "cwd").readlink().is_relative_to(run_dir):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended, or is a zombie or not ours
    return found
