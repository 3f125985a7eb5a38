"""The supervisor with real programs: restarts, sentences, and no process left behind, whatever dies first."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.run import processes
from cli.run.processes import Program, Supervisor
from cli.run.progress import screen_for
from cli.run.recorder import EVENTS, read_records
from cli.run.session import UNWATCHED, Session
from cli.run.warden import Warden, alive
from shared.config import build
from shared.cores import available
from shared.errors import UserError

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def program(folder: Path, code: str, name: str = "thing", **options: object) -> Program:
    command = [sys.executable, "-c", code]
    return Program(name, command, dict(os.environ), folder / f"{name}.log", **options)  # type: ignore[arg-type]


@asynccontextmanager
async def supervisor(on_note: Callable[[str], None] = lambda note: None) -> AsyncIterator[Supervisor]:
    it = Supervisor(on_note)
    try:
        yield it
    finally:
        await it.stop()


async def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.02)


def said(log: Path) -> str:
    return log.read_text().strip() if log.exists() else ""


async def test_a_program_that_dies_is_started_again(tmp_path: Path) -> None:
    code = f"""
import pathlib, sys, time
mark = pathlib.Path({str(tmp_path / "mark")!r})
if not mark.exists():
    mark.touch()
    sys.exit(1)
print("second life", flush=True)
time.sleep(600)
"""
    notes: list[str] = []
    async with supervisor(notes.append) as it:
        entry = it.start(program(tmp_path, code))
        await eventually(lambda: "second life" in said(tmp_path / "thing.log"))
        assert entry.restarts == 1
        assert "thing died with exit status 1" in notes[0]


async def test_a_program_that_keeps_dying_stops_the_run_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FIRST_PAUSE_S", 0.01)
    async with supervisor() as it:
        it.start(program(tmp_path, "import sys; print('the disk is on fire', flush=True); sys.exit(3)"))
        error = await asyncio.wait_for(it.failure(), 20)
    assert "thing died 6 times in 5 minutes (last with exit status 3)" in str(error)
    assert "the disk is on fire" in str(error)


async def test_exit_status_two_is_the_users_and_is_not_repeated(tmp_path: Path) -> None:
    code = "import sys; print('x: noise'); print('actor: the model has no tokenizer.', file=sys.stderr); sys.exit(2)"
    async with supervisor() as it:
        entry = it.start(program(tmp_path, code, "actor-1", spoken_name="actor"))
        error = await asyncio.wait_for(it.failure(), 20)
    assert str(error) == "actor-1: the model has no tokenizer."
    assert entry.restarts == 0


async def test_a_clean_exit_counts_as_done_only_when_the_work_is_done(tmp_path: Path) -> None:
    answers = [False, True]

    async def is_done() -> bool:
        return answers.pop(0)

    async with supervisor() as it:
        entry = it.start(program(tmp_path, "pass", is_done=is_done))
        await asyncio.wait_for(it.finished("thing"), 20)
    assert entry.restarts == 1


@pytest.mark.slow
async def test_stop_leaves_no_process_even_of_a_stubborn_program_with_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERMINATE_S", 0.5)
    it = Supervisor()
    entry = it.start(program(tmp_path, STUBBORN))
    log = tmp_path / "thing.log"
    await eventually(lambda: said(log) != "")
    group = entry.pid
    assert group is not None
    began = time.monotonic()
    await it.stop()
    assert time.monotonic() - began < 4
    await eventually(lambda: not alive(group), 2)
    assert _is_gone(int(said(log))), "the child of the program is there still"


@pytest.mark.slow
async def test_stop_keeps_its_promise_when_every_program_is_stubborn(tmp_path: Path) -> None:
    it = Supervisor()
    it.start(program(tmp_path, STUBBORN))
    it.start(program(tmp_path, STUBBORN, "redis", last=True))
    await eventually(lambda: all(said(tmp_path / f"{name}.log") for name in ("thing", "redis")))
    began = time.monotonic()
    await it.stop()
    assert time.monotonic() - began < 10


async def test_what_comes_last_outlives_the_others(tmp_path: Path) -> None:
    order = tmp_path / "order"
    it = Supervisor()
    for name, last in (("redis", True), ("actor", False), ("replay", False)):
        it.start(program(tmp_path, leaving(name, order), name, last=last))
    logs = [tmp_path / f"{name}.log" for name in ("redis", "actor", "replay")]
    await eventually(lambda: all(map(said, logs)))
    await it.stop()
    assert order.read_text().split()[-1] == "redis"


def leaving(name: str, order: Path, after_s: float = 0.0) -> str:
    """A program that writes its name down when it is told to leave, and goes."""
    return f"""
import signal, sys, time
def leave(*_):
    time.sleep({after_s})
    with open({str(order)!r}, "a") as file:
        file.write({name + " "!r})
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""


def test_the_warden_ends_everything_when_the_command_is_killed_and_redis_last(tmp_path: Path) -> None:
    """The command is a real process here, and it is ended with SIGKILL."""
    order = tmp_path / "order"
    codes = {name: leaving(name, order, after_s=0.3) for name in ("one", "two")} | {"redis": leaving("redis", order)}
    code = f"""
import asyncio, os, sys
from pathlib import Path
from cli.run.processes import Program, Supervisor
async def main():
    it, logs = Supervisor(), []
    for name, child in {codes!r}.items():
        logs.append(Path({str(tmp_path)!r}) / name)
        it.start(Program(name, [sys.executable, "-c", child], dict(os.environ), logs[-1], last=name == "redis"))
    while not all(log.exists() and log.read_text() for log in logs):
        await asyncio.sleep(.01)
    print(*[r.pid for r in it.running.values()], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    groups = [int(word) for word in command.stdout.readline().split()]
    command.stdout.close()
    assert len(groups) == 3
    assert all(map(alive, groups))
    command.send_signal(signal.SIGKILL)
    command.wait()
    deadline = time.monotonic() + 10
    while any(alive(g) and not _is_gone(g) for g in groups):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert sorted(order.read_text().split()[:2]) == ["one", "two"]


def test_the_warden_forgets_groups_that_have_ended() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    warden = Warden(6.0)
    warden.watch(bystander.pid)
    warden.forget(bystander.pid)
    warden.close()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_warden_that_was_killed_is_said_once(tmp_path: Path) -> None:
    config = build({"run": {"name": "unwatched", "root": str(tmp_path)}})
    config.run_dir.mkdir()
    session = Session(config, screen_for(io.StringIO()), available())
    async with supervisor() as it:
        session._say_unwatched(it)
        assert not session.view.warning
        os.kill(it.pids()[0], signal.SIGKILL)
        await eventually(lambda: it.unwatched)
        assert it.pids() == []
        for _ in range(2):
            session._say_unwatched(it)
    assert session.view.warning == UNWATCHED
    session.recorder.close()
    assert [r["text"] for r in read_records(config.run_dir / EVENTS)] == [UNWATCHED]


async def test_a_run_ends_as_it_should_when_its_warden_was_killed(tmp_path: Path) -> None:
    async def is_done() -> bool:
        return True

    async with supervisor() as it:
        it.start(program(tmp_path, "import sys; sys.stdin.read()", is_done=is_done))
        os.kill(it.pids()[0], signal.SIGKILL)
        await asyncio.wait_for(it.finished("thing"), 20)
        it.start(program(tmp_path, "import time; time.sleep(600)", "another"))
        await eventually(lambda: it.running["another"].pid is not None)


async def test_a_program_that_cannot_be_started_again_stops_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FIRST_PAUSE_S", 0.01)
    logs = tmp_path / "logs"
    logs.mkdir()
    async with supervisor() as it:
        it.start(program(logs, f"import shutil; shutil.rmtree({str(logs)!r})"))
        error = await asyncio.wait_for(it.failure(), 20)
    assert isinstance(error, UserError)
    assert str(error).startswith("thing cannot be kept running (") and str(logs) in str(error)


async def test_a_fault_of_our_own_in_watching_a_program_is_heard(tmp_path: Path) -> None:
    async def is_done() -> bool:
        raise ZeroDivisionError

    async with supervisor() as it:
        it.start(program(tmp_path, "pass", is_done=is_done))
        assert isinstance(await asyncio.wait_for(it.failure(), 20), ZeroDivisionError)


async def test_every_end_is_heard_before_stop_returns(tmp_path: Path) -> None:
    async with supervisor() as it:
        for number in range(3):
            it.start(program(tmp_path, "print('up', flush=True); import time; time.sleep(600)", f"thing{number}"))
        await eventually(lambda: all(said(tmp_path / f"thing{number}.log") for number in range(3)))
    processes = [running.process for running in it.running.values()]
    assert [p and p.returncode for p in processes] == [-signal.SIGTERM] * 3
