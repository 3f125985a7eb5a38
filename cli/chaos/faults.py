"""How each fault is inflicted, on real processes, connections and files.

kill     SIGKILL to the process and what it started
stop     SIGSTOP, and SIGCONT after a while
restart  SIGTERM; whoever is still there after LEAVE_S gets SIGKILL, and the report says so
cut      every connection of a link is broken, new ones too, for a while
delay    each chunk on a link waits DELAY_S, both ways
disk     no file of the process may grow (RLIMIT_FSIZE: EFBIG where a full disk says ENOSPC), nor of who takes its place
damage   bytes of the newest published version are flipped, and an actor is killed, which has to read it when it is
         back: the learner is stopped until somebody has refused it, or a newer version would take its place
"""

import asyncio
import os
import random
import resource
import signal
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cli.chaos import schedule
from cli.chaos.proxy import Link
from cli.chaos.schedule import Fault
from cli.run.processes import Running
from cli.run.warden import alive
from shared import weights

LEAVE_S = 10.0
DELAY_S = 0.2
LOOK_S = 0.1
READ_S = 90.0  # an actor starts in 10 to 45 s
FLIPPED_BYTES = 64
SMALL_FILE_BYTES = 2**15  # what a learner may still write: lines in its log, no weights


@dataclass(frozen=True)
class Inflicted:
    """A fault that happened, in unix seconds. `note`: what was worth a sentence."""

    fault: Fault
    target: str
    began: float
    ended: float
    note: str = ""


class Inflictor:
    """Has the means: processes by name, links by name, the folder of the weights and Redis's log.

    refused: the versions that actors have refused by now, as in their events.
    """

    def __init__(
        self,
        running: Mapping[str, Running],
        links: Mapping[str, Link],
        weights_dir: Path,
        redis_dir: Path,
        refused: Container[str],
        seed: int,
    ) -> None:
        self._running, self._links, self._refused = running, links, refused
        self._weights_dir, self._redis_dir = weights_dir, redis_dir
        self._rng = random.Random(seed)

    async def inflict(self, fault: Fault) -> Inflicted:
        """Inflict one fault to its end. Whatever happens, nothing stays stopped, cut or limited."""
        began, note, target = time.time(), "", self._one_of(fault.target)
        match fault.kind:
            case schedule.KILL:
                await self._kill(target)
            case schedule.RESTART:
                note = await self._restart(target)
            case schedule.STOP:
                await self._stop(target, fault.seconds)
            case schedule.CUT | schedule.DELAY:
                await self._hinder(target, fault)
            case schedule.DISK:
                await self._fill(target, fault.seconds)
            case _:
                note = await self._damage()
        return Inflicted(fault, target, began, time.time(), note)

    def _one_of(self, target: str) -> str:
        """`actor` is any of them, and so is the first word of a link."""
        first, dash, rest = target.partition("-")
        names = sorted(name for name in self._running if name == first or name.startswith(first + "-"))
        return (self._rng.choice(names) if names else first) + dash + rest

    async def _group(self, name: str) -> int:
        """The group of a live process; one that starts again is waited for. What it dies of now is not its own."""
        entry = self._running[name]
        while True:
            entry.deaths.clear()
            if entry.pid is not None:
                return entry.pid
            await asyncio.sleep(LOOK_S)

    async def _kill(self, name: str) -> None:
        _signal(await self._group(name), signal.SIGKILL)

    async def _restart(self, name: str) -> str:
        group = await self._group(name)
        _signal(group, signal.SIGTERM)
        deadline = time.monotonic() + LEAVE_S
        while alive(group):
            if time.monotonic() > deadline:
                _signal(group, signal.SIGKILL)
                return f"{name} did not leave within {LEAVE_S:g} s of SIGTERM"
            await asyncio.sleep(LOOK_S)
        return ""

    async def _stop(self, name: str, seconds: float) -> None:
        with _stopped(await self._group(name)):
            await asyncio.sleep(seconds)

    async def _hinder(self, link: str, fault: Fault) -> None:
        way = self._links[link]
        if fault.kind == schedule.CUT:
            way.cut()
        else:
            way.delay_s = DELAY_S
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            way.mend()

    async def _fill(self, name: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        limited: set[int] = set()
        size = _largest_file(self._redis_dir) if name == schedule.REDIS else SMALL_FILE_BYTES
        try:
            while time.monotonic() < until:
                pid = await self._group(name)
                if pid not in limited:
                    limited.add(pid)
                    _limit(pid, size)
                await asyncio.sleep(LOOK_S)
        finally:
            for pid in limited:
                _limit(pid, resource.RLIM_INFINITY)

    async def _damage(self) -> str:
        with _stopped(await self._group(schedule.LEARNER)):
            return await self._damage_newest()

    async def _damage_newest(self) -> str:
        published = weights.published(self._weights_dir)
        try:
            self._flip(next((self._weights_dir / published[-1].directory).glob("*.safetensors")))
        except (IndexError, StopIteration, FileNotFoundError):
            return "no version was there to be damaged"
        await self._kill(self._one_of(schedule.ACTOR))
        version, deadline = str(published[-1]), time.monotonic() + READ_S
        while version not in self._refused:
            if time.monotonic() > deadline:
                return f"nobody read the damaged version {version}"
            await asyncio.sleep(LOOK_S)
        return f"version {version}"

    def _flip(self, file: Path) -> None:
        data = bytearray(file.read_bytes())
        for at in self._rng.sample(range(len(data) // 2, len(data)), FLIPPED_BYTES):
            data[at] ^= 0xFF
        aside = file.with_suffix(".damaged")  # put in place at once: whoever has the old file open keeps it
        aside.write_bytes(data)
        aside.replace(file)


def _largest_file(folder: Path) -> int:
    return max((file.stat().st_size for file in folder.rglob("*") if file.is_file()), default=0)


def _limit(pid: int, size: int) -> None:
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size == resource.RLIM_INFINITY else size, hard))


@contextmanager
def _stopped(group: int) -> Iterator[None]:
    """The processes of a group stand still in here; they go on in any case."""
    _signal(group, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(group, signal.SIGCONT)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
