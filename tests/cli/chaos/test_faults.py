"""The plan of faults, and each fault on a real process or file."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Container
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from cli.chaos import faults
from cli.chaos.faults import Inflicted, Inflictor
from cli.chaos.proxy import Link
from cli.chaos.schedule import KINDS, Fault, pairs, plan
from cli.run.processes import Program, Supervisor
from shared import weights
from shared.errors import UserError
from shared.versions import Version

WRITER = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
file = pathlib.Path(sys.argv[1])
while True:
    try:
        with file.open("ab") as out:
            out.write(b"x" * 4096)
        print("took", flush=True)
    except OSError as error:
        print("refused", error.errno, flush=True)
    time.sleep(0.05)
"""


def test_a_plan_is_a_function_of_its_seed_and_strikes_every_pair_before_any_comes_again() -> None:
    every = pairs(search=True)
    made = plan(7, 10, 8.0, 60.0, search=True)
    assert made == plan(7, 10, 8.0, 60.0, search=True) != plan(8, 10, 8.0, 60.0, search=True)
    assert {kind for kind, _ in every} == set(KINDS)
    assert sorted((f.kind, f.target) for f in made[: len(every)]) == sorted(every)
    assert all(a.at < b.at for a, b in pairwise(made)) and made[-1].at < 600
    assert 0.7 * 75 < len(made) < 1.3 * 75
    lasting = [f.seconds for f in made if f.seconds]
    assert 6 <= min(lasting) < 12 and 54 < max(lasting) <= 60
    assert not any("env_search" in target for _, target in pairs(search=False))


@pytest_asyncio.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    """Keeps one process running, which writes to a file, under the names of a learner and of an actor."""
    keeper = Supervisor()
    for name in ("learner", "actor-0"):
        command = [sys.executable, "-c", WRITER, str(tmp_path / f"{name}.out")]
        keeper.start(Program(name, command, dict(os.environ), tmp_path / f"{name}.log"))
    yield keeper
    await keeper.stop()


def inflictor(
    supervisor: Supervisor, folder: Path, links: dict[str, Link] | None = None, refused: Container[str] = ()
) -> Inflictor:
    return Inflictor(supervisor.running, links or {}, folder / "weights", folder / "redis", refused, seed=0)


async def until(condition, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def begun(supervisor: Supervisor, folder: Path, name: str = "learner") -> int:
    """The process, once it writes."""
    await until(lambda: (folder / f"{name}.out").exists() and supervisor.running[name].pid is not None)
    pid = supervisor.running[name].pid
    assert pid is not None
    return pid


async def test_a_killed_process_is_another_one_and_its_death_is_forgiven(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    hurt = inflictor(supervisor, tmp_path)
    for _ in range(2):
        before = await begun(supervisor, tmp_path)
        done = await hurt.inflict(Fault(0, "kill", "learner", 0))
        await until(lambda before=before: supervisor.running["learner"].pid not in (before, None))
        assert isinstance(done, Inflicted) and done.target == "learner"
    assert len(supervisor.running["learner"].deaths) == 1  # the first one was taken off the account


async def test_a_restarted_process_is_told_and_leaves(supervisor: Supervisor, tmp_path: Path) -> None:
    before = await begun(supervisor, tmp_path)
    done = await inflictor(supervisor, tmp_path).inflict(Fault(0, "restart", "learner", 0))
    assert done.note == ""
    await until(lambda: supervisor.running["learner"].pid not in (before, None))


async def test_one_that_does_not_leave_is_named(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "LEAVE_S", 0.3)
    pid = await begun(supervisor, tmp_path)
    psutil.Process(pid).suspend()  # it does not hear the signal
    done = await inflictor(supervisor, tmp_path).inflict(Fault(0, "restart", "learner", 0))
    assert done.note == "learner did not leave within 0.3 s of SIGTERM"
    await until(lambda: supervisor.running["learner"].pid not in (pid, None))


async def test_a_stopped_process_goes_on(supervisor: Supervisor, tmp_path: Path) -> None:
    pid = await begun(supervisor, tmp_path, "actor-0")
    job = asyncio.ensure_future(inflictor(supervisor, tmp_path).inflict(Fault(0, "stop", "actor", 0.5)))
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    done = await job
    assert (done.target, done.ended - done.began >= 0.5) == ("actor-0", True)
    await until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED)


async def test_a_fault_that_is_cut_short_leaves_nothing_stopped_or_cut(supervisor: Supervisor, tmp_path: Path) -> None:
    pid = await begun(supervisor, tmp_path)
    link = Link(1)
    hurt = inflictor(supervisor, tmp_path, {"actor-0-redis": link})
    jobs = [asyncio.ensure_future(hurt.inflict(Fault(0, kind, target, 60))) for kind, target in
            (("stop", "learner"), ("cut", "actor-redis"))]  # fmt: skip
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED and link._is_cut)
    for job in jobs:
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job
    await until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED)
    assert not link._is_cut


@pytest.mark.slow
async def test_on_a_full_disk_no_file_grows_whoever_writes_it(supervisor: Supervisor, tmp_path: Path) -> None:
    await begun(supervisor, tmp_path)
    file, log = tmp_path / "learner.out", tmp_path / "learner.log"
    await until(lambda: file.stat().st_size > faults.SMALL_FILE_BYTES)
    job = asyncio.ensure_future(inflictor(supervisor, tmp_path).inflict(Fault(0, "disk", "learner", 60.0)))
    await until(lambda: "refused" in log.read_text())
    process = supervisor.running["learner"].process
    assert process is not None
    process.kill()
    await until(lambda: supervisor.running["learner"].pid not in (process.pid, None))
    refused = log.read_text().count("refused")
    await until(lambda: log.read_text().count("refused") > refused)  # the next one may take a write before it is found
    size = file.stat().st_size
    refused = log.read_text().count("refused")
    await until(lambda: log.read_text().count("refused") > refused + 5)
    assert file.stat().st_size == size
    job.cancel()
    await asyncio.wait([job])
    await until(lambda: file.stat().st_size > size + 4 * 4096)


async def test_a_damaged_version_stays_the_newest_until_an_actor_has_refused_it(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    pid, learner = await begun(supervisor, tmp_path, "actor-0"), psutil.Process(await begun(supervisor, tmp_path))
    made = {number: publish(tmp_path, number) for number in (1, 2)}
    refused: set[str] = set()
    job = asyncio.ensure_future(
        inflictor(supervisor, tmp_path, refused=refused).inflict(Fault(0, "damage", "weights", 0))
    )
    await until(lambda: supervisor.running["actor-0"].pid not in (pid, None))
    refused.add("0.1")
    await asyncio.sleep(3 * faults.LOOK_S)
    assert learner.status() == psutil.STATUS_STOPPED and not job.done(), "it would publish a newer one"
    weights.verify(*made[1])
    with pytest.raises(UserError, match="damaged or replaced"):
        weights.verify(*made[2])
    refused.add("0.2")
    assert (await job).note == "version 0.2"
    await until(lambda: learner.status() != psutil.STATUS_STOPPED)


async def test_a_damage_that_nobody_saw_is_named(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "READ_S", 0.3)
    learner = psutil.Process(await begun(supervisor, tmp_path))
    publish(tmp_path, 1)
    done = await inflictor(supervisor, tmp_path).inflict(Fault(0, "damage", "weights", 0))
    assert done.note == "nobody read the damaged version 0.1"
    await until(lambda: learner.status() != psutil.STATUS_STOPPED)


def publish(folder: Path, number: int) -> tuple[Path, str]:
    made, digest, _ = weights.publish(folder / "weights", Version(0, number), lambda f: _write(f / "m.safetensors"))
    return made, digest


def _write(file: Path) -> None:
    file.write_bytes(bytes(4096))
