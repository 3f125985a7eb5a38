"""A process that hangs instead of dying is noticed and named, its tasks are done by another, and Ctrl-C is not kept."""

import signal
import time
from pathlib import Path

import psutil
import pytest
import redis

from cli.run.local_redis import stored_url
from cli.run.recorder import read_records
from tests.e2e.command import ATLAS, STOP_S, Command, overrides
from tests.e2e.conftest import Start
from tests.e2e.test_exact_resume import redis_of, trained

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

START_S = 600
NOTICED_S = 10 + 5 + 15  # a heartbeat's life, replay's look, and room
REISSUED_S = 15 + 4 + 60  # without renewal, the next look, and the groups of two steps
SMALL_BYTES = 2**15  # logs and a summary fit, weights do not


def up(policy: Path) -> list[str]:
    """A run that is far from its end, with two actors."""
    settings = overrides(
        run={"name": "hung", "root": ".", "steps": 1000},
        rollout={"group_size": 4},
        eval={"limit": 2, "every": 0},
        actor={"count": 2, "engine": "torch"},
        replay={"policy": "none", "max_lag": 0, "port": 0},
        search={"port": 0},
        learner={"batch": 4, "checkpoint_every": 5},
    )
    return ["up", str(ATLAS.parent / "atlas.toml"), f"--model.path={policy}", *settings]


def test_a_hung_actor_is_named_and_ctrl_c_ends_a_run_whatever_hangs(start: Start, folder: Path, policy: Path) -> None:
    run_dir = folder / "hung"
    command = start(*up(policy))
    command.wait_until(trained(run_dir, 2), "two steps", START_S)
    assert redis_of(run_dir) in command.processes()
    hung = actors(command)[0]
    hung.suspend()
    name = f"-{hung.pid}-"
    command.wait_until(lambda: told(run_dir, name, "has stopped reporting"), "word of the hung actor", NOTICED_S)
    command.wait_until(trained(run_dir, steps(run_dir) + 2), "two steps without it", REISSUED_S)
    status = start("status", "hung")
    assert status.wait(60) == 0 and "has stopped reporting" in " ".join(status.said.split())
    hung.resume()
    command.wait_until(lambda: told(run_dir, name, "reports again"), "word of its return", NOTICED_S)

    suspend(*actors(command))  # the learner waits for groups
    time.sleep(2)
    interrupt(command)

    for hurt in (
        lambda c: suspend(redis_of(run_dir)),
        lambda c: suspend(c.service("replay")),
        lambda c: suspend(*started_by(c)),
        lambda c: leave_no_room(c, run_dir),
    ):
        command = start("up", "--resume", "hung")
        command.wait_until(trained(run_dir, steps(run_dir) + 1), "a step after resuming", START_S)
        hurt(command)
        time.sleep(1)
        interrupt(command)


def actors(command: Command) -> list[psutil.Process]:
    """Both."""
    found = [p for p in command.processes() if "services.actor" in p.cmdline()]
    assert len(found) == 2
    return found


def started_by(command: Command) -> list[psutil.Process]:
    """All but the command itself, Redis too."""
    return [p for p in command.processes() if p.pid != command.process.pid]


def suspend(*processes: psutil.Process | None) -> None:
    """SIGSTOP."""
    for process in processes:
        assert process is not None
        process.suspend()


def leave_no_room(command: Command, run_dir: Path) -> None:
    """Redis is full, no file may grow, and the retriever is stopped: whatever anybody does next, it waits."""
    with redis.Redis.from_url(stored_url(run_dir) or "") as client:
        client.config_set("maxmemory", 1)
    for process in set(command.processes()) - {redis_of(run_dir)}:
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (SMALL_BYTES, hard))
    suspend(command.service("env_search"))


def interrupt(command: Command) -> None:
    """Ctrl-C: within ten seconds nothing is left."""
    asked = time.monotonic()
    command.signal(signal.SIGINT)
    assert command.wait(STOP_S) == 130
    command.assert_gone()
    assert time.monotonic() - asked < STOP_S


def steps(run_dir: Path) -> int:
    """Trained so far."""
    return len(read_records(run_dir / "metrics.jsonl"))


def told(run_dir: Path, *parts: str) -> bool:
    """Whether a warning has all of these in it."""
    warnings = [r["text"] for r in read_records(run_dir / "events.jsonl") if r["kind"] == "warning"]
    return any(all(part in text for part in parts) for text in warnings)
