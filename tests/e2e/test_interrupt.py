"""Stopped and killed in every way: no process outlives the command, and the run goes on as if nothing had been."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from cli.run import local_redis
from cli.run.recorder import read_records
from shared.streams import Keys
from tests.e2e.command import ATLAS, STOP_S, Command, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

BATCH = 4
START_S, STEP_S, RUN_S = 240, 120, 400  # generous: the machine may have others to serve


def up(policy: Path, name: str, steps: int, questions: int) -> list[str]:
    """The words of a small run with replay and a checkpoint every other step."""
    settings = overrides(
        run={"name": name, "root": ".", "steps": steps},
        rollout={"group_size": 4},
        eval={"limit": questions, "every": 0},
        actor={"count": 1, "engine": "torch"},
        replay={"port": 0, "select": 2, "capacity": 8},
        search={"port": 0},
        learner={"batch": BATCH, "checkpoint_every": 2},
    )
    return ["up", str(ATLAS.parent / "atlas.toml"), f"--model.path={policy}", *settings]


def test_a_run_survives_ctrl_c_in_every_phase_and_the_death_of_its_command(
    start: Start, folder: Path, policy: Path
) -> None:
    run_dir, steps = folder / "stopped", 6
    questions = 240  # so many that a signal finds the first evaluation under way
    logs = run_dir / "logs"

    loading = start(*up(policy, "stopped", steps, questions))
    loading.wait_until(lambda: all(map(begun, heavy(logs))), "services that load their models", START_S)
    interrupt(loading)
    assert "learner" not in ready(run_dir)  # the actor may be quicker on an idle machine

    evaluating = start("up", "--resume", "stopped")
    evaluating.wait_until(lambda: bool(of_kind(run_dir, "swap")), "actor that answers questions", START_S)
    interrupt(evaluating)
    assert of_kind(run_dir, "eval") == []

    killed = start("up", "--resume", "stopped")
    killed.wait_until(lambda: trained(run_dir) >= 2, "two steps", START_S)
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    killed.assert_gone(STOP_S)

    training = start("up", "--resume", "stopped")
    before = trained(run_dir)
    training.wait_until(lambda: trained(run_dir) > before, "a step after resuming", START_S)
    interrupt(training)
    assert trained(run_dir) < steps

    saving = start("up", "--resume", "stopped")
    freeze_in_checkpoint(saving, run_dir / "checkpoints", steps)
    interrupt(saving)

    last = start("up", "--resume", "stopped")
    assert last.wait(RUN_S) == 0, last.said
    last.assert_gone()
    assert_complete(run_dir, steps)
    assert [e["round"] for e in of_kind(run_dir, "eval")] == [0, steps]


def test_a_run_whose_folder_is_moved_stops_and_goes_on_once_it_is_back(
    start: Start, folder: Path, policy: Path
) -> None:
    run_dir, steps = folder / "moved", 40
    going = start(*up(policy, "moved", steps, 8))
    going.wait_until(lambda: trained(run_dir) >= 2, "two steps", START_S)
    again = start("up", "--resume", "moved")
    assert again.wait(STEP_S) == 2 and "moved is running already: stop it first" in again.said
    run_dir.rename(folder / "elsewhere")
    assert going.wait(STEP_S) == 2
    going.assert_gone()
    assert f"{run_dir} was moved or deleted while its run went on" in going.said
    shutil.rmtree(run_dir, ignore_errors=True)
    (folder / "elsewhere").rename(run_dir)
    last = start("up", "--resume", "moved")
    assert last.wait(RUN_S) == 0, last.said
    assert_complete(run_dir, steps)


def interrupt(command: Command) -> None:
    """Ctrl-C: within ten seconds all of it is gone, and it has said how to go on."""
    asked = time.monotonic()
    command.signal(signal.SIGINT)
    assert command.wait(STOP_S) == 130
    command.assert_gone()
    assert time.monotonic() - asked < STOP_S
    assert "headrace up --resume stopped" in command.said


def heavy(logs: Path) -> list[Path]:
    """The logs of the services that load a model."""
    return [logs / "learner.log", logs / "actor-0.log"]


def begun(log: Path) -> bool:
    """Whether a service has come to the point where it imports torch and reads the model."""
    return log.is_file() and "metrics on port" in log.read_text()


def freeze_in_checkpoint(command: Command, checkpoints: Path, step: int) -> None:
    """Stop the learner's process (SIGSTOP) while it writes the checkpoint of this step, or at the latest just after."""
    command.wait_until(lambda: command.service("learner") is not None, "learner", START_S)
    learner = command.service("learner")
    assert learner is not None
    deadline = time.monotonic() + RUN_S
    while not any(name.startswith(f".step_{step}.") or name == f"step_{step}" for name in names_in(checkpoints)):
        assert time.monotonic() < deadline and command.process.poll() is None, command.said
        time.sleep(0.001)
    learner.suspend()


def names_in(folder: Path) -> list[str]:
    """What lies in a folder, if it is there."""
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def of_kind(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """The events of a kind that the commands have recorded."""
    return [record for record in read_records(run_dir / "events.jsonl") if record["kind"] == kind]


def ready(run_dir: Path) -> list[str]:
    """Which services have come up."""
    return [record["service"] for record in of_kind(run_dir, "ready")]


def test_a_run_survives_the_death_of_each_service(start: Start, folder: Path, policy: Path) -> None:
    run_dir, steps = folder / "killed", 16
    command = start(*up(policy, "killed", steps, questions=8))
    for name, after in (("replay", 1), ("env_search", 3), ("actor", 5), ("learner", 8)):
        command.wait_until(lambda after=after: trained(run_dir) >= after, f"step {after}", START_S)
        kill_and_see_it_come_back(command, name)
    assert command.wait(RUN_S) == 0, command.said
    command.assert_gone()
    summary = assert_complete(run_dir, steps)
    assert summary["restarts"] == 4


def kill_and_see_it_come_back(command: Command, name: str) -> None:
    """kill -9, and another process of the service."""
    victim = command.service(name)
    assert victim is not None, f"no {name}"
    victim.kill()

    def is_back() -> bool:
        now: psutil.Process | None = command.service(name)
        return now is not None and now.pid != victim.pid

    command.wait_until(is_back, f"new {name}", STEP_S)


def assert_complete(run_dir: Path, steps: int) -> dict[str, Any]:
    """Every step trained once and recorded once, nothing lost; its summary."""
    summary = json.loads((run_dir / "summary.json").read_text())
    assert [record["step"] for record in read_records(run_dir / "metrics.jsonl")] == list(range(steps))
    assert (summary["steps"], summary["groups_trained"]) == (steps, steps * BATCH)
    assert (summary["groups_lost"], summary["groups_trained_twice"]) == (0, 0)
    assert summary["finished"]
    assert (run_dir / "final" / "model.safetensors").is_file()
    with stored_state(run_dir) as client:
        ledger = [json.loads(line) for line in client.lrange(Keys(run_dir.name).prefix + "replay:ledger", 0, -1)]
    assert [line["step"] for line in ledger] == list(range(steps))
    assert sorted(n for line in ledger for n in line["fresh_numbers"]) == list(range(steps * BATCH))
    return summary


@contextmanager
def stored_state(run_dir: Path) -> Iterator[Any]:
    """What the run's own Redis has on disk."""
    server = local_redis.prepare(run_dir, 0)
    with (run_dir / "logs" / "reopened.log").open("wb") as log:
        process = subprocess.Popen(server.command, stdout=log, stderr=log)
    try:
        with redis.Redis.from_url(server.url) as client:
            deadline = time.monotonic() + 30
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    assert time.monotonic() < deadline, "the stored state does not open"
                    time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        process.wait(timeout=20)


def trained(run_dir: Path) -> int:
    """Steps recorded so far."""
    return len(read_records(run_dir / "metrics.jsonl"))
