"""Starting, watching and ending the processes of a run.

    start --> running --exit 0, and its work is done--> finished
                 |----exit 2 (a sentence for the user)--> the whole run stops with that sentence
                 '----anything else--> waits, starts again; more than RESTARTS times in WINDOW_S: the whole run stops

Every process leads a group (and session) of its own, so that what it starts in turn ends with it and Ctrl-C in a
terminal reaches only the command. When `stop` returns, no process of any group is left.
"""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cli.run.warden import Warden, alive
from shared.errors import UserError

RESTARTS, WINDOW_S = 5, 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
# `stop` takes at most all of these, the last three times more: 9 s of the ten that a user is promised after Ctrl-C, and
# longer only where run.stop_s does
TERMINATE_S, TERMINATE_LAST_S, KILL_S = 5.0, 2.0, 0.5
LATER_S = 1.0  # the warden waits longer than that
LOG_LINES_QUOTED = 4
LOG_CHARACTERS_QUOTED = 1200


@dataclass(frozen=True)
class Program:
    """What to run. `spoken_name` is what it calls itself in front of a sentence for the user."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    spoken_name: str = ""
    is_done: Callable[[], Awaitable[bool]] | None = None  # after exit status 0: was its work done?
    last: bool = False  # ended after the others: Redis
    cores: Sequence[int] = ()  # that it is kept to, with what it starts; empty: it may run anywhere


@dataclass
class Running:
    """A program and the process that runs it now."""

    program: Program
    process: asyncio.subprocess.Process | None = None
    started: float = 0.0  # monotonic
    done: asyncio.Event = field(default_factory=asyncio.Event)
    restarts: int = 0
    log_offset: int = 0  # where this process began to write
    deaths: deque[float] = field(default_factory=deque)

    @property
    def pid(self) -> int | None:
        """Of the live process."""
        return self.process.pid if self.process and self.process.returncode is None else None


class Supervisor:
    """Keeps programs running until they finish, one of them fails for good, or `stop` is called."""

    def __init__(self, on_note: Callable[[str], None] = lambda note: None, terminate_s: float | None = None) -> None:
        """`on_note` hears a sentence whenever a program is started again; `terminate_s`: TERMINATE_S, run.stop_s."""
        self._terminate_s = TERMINATE_S if terminate_s is None else terminate_s
        self.running: dict[str, Running] = {}
        self._on_note = on_note
        self._warden = Warden(self._terminate_s + LATER_S)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def start(self, program: Program) -> Running:
        """Start a program and keep it running."""
        entry = self.running[program.name] = Running(program)
        self._tasks.append(asyncio.ensure_future(self._keep_or_fail(entry)))
        return entry

    async def failure(self) -> Exception:
        """Wait until a program has failed for good; the sentence of a UserError says which and why."""
        return await asyncio.shield(self._failure)

    async def finished(self, name: str) -> None:
        """Wait until a program has ended because its work was done."""
        await self.running[name].done.wait()

    def pids(self) -> list[int]:
        """The live processes, without what they started in turn; the warden too."""
        warden = [] if self.unwatched else [self._warden.pid]
        return [*warden, *(pid for r in self.running.values() if (pid := r.pid) is not None)]

    @property
    def unwatched(self) -> bool:
        """Whether nobody is left to end the processes, should this one be killed."""
        return self._warden.gone

    async def stop(self, at_once: bool = False) -> None:
        """End every process: SIGTERM, SIGKILL when its time is over; then those that come last, sooner.

        at_once: with no time to write anything more.
        """
        self._stopping = True
        entries = list(self.running.values())
        await self._end([r for r in entries if not r.program.last], 0 if at_once else self._terminate_s)
        await self._end([r for r in entries if r.program.last], TERMINATE_LAST_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # a process that a task was just starting when it was cancelled
        await self._end(entries, 0)
        await self._reap(entries)
        self._warden.close()

    async def _keep_or_fail(self, entry: Running) -> None:
        try:
            await self._keep_running(entry)
        except OSError as error:
            self._fail(UserError(f"{entry.program.name} cannot be kept running ({error}), so the run stops."))
        except Exception as error:  # noqa: BLE001  nobody awaits this task: who waits for a failure raises it
            self._fail(error)

    async def _keep_running(self, entry: Running) -> None:
        while not self._stopping:
            process = await self._spawn(entry)
            code = await process.wait()
            _kill_group(process.pid)
            self._warden.forget(process.pid)
            if self._stopping:
                return
            if code == 0 and entry.program.is_done is not None and await entry.program.is_done():
                entry.done.set()
                return
            if not await self._pause_before_restart(entry, code):
                return

    async def _pause_before_restart(self, entry: Running, code: int) -> bool:
        now, name = time.monotonic(), entry.program.name
        entry.deaths.append(now)
        while entry.deaths[0] < now - WINDOW_S:
            entry.deaths.popleft()
        if code == 2:
            self._fail(UserError(_user_sentence(entry)))
            return False
        if len(entry.deaths) > RESTARTS:
            minutes = WINDOW_S / 60
            self._fail(
                UserError(
                    f"{name} died {len(entry.deaths)} times in {minutes:g} minutes (last with {_how(code)}), so the "
                    f"run stops; the end of {entry.program.log}:\n{_tail(entry)}"
                )
            )
            return False
        pause = min(FIRST_PAUSE_S * 2 ** (len(entry.deaths) - 1), LONGEST_PAUSE_S)
        self._on_note(f"{name} died with {_how(code)}; it starts again in {pause:g} s (see {entry.program.log})")
        await asyncio.sleep(pause)
        entry.restarts += 1
        return True

    async def _spawn(self, entry: Running) -> asyncio.subprocess.Process:
        program = entry.program
        with program.log.open("ab") as log:
            entry.log_offset = log.tell()
            entry.started = time.monotonic()
            entry.process = await asyncio.create_subprocess_exec(
                *program.command,
                env=dict(program.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._warden.watch(entry.process.pid, program.last)
        if program.cores:
            with suppress(OSError):  # it has gone already, or the cores have been taken from us
                os.sched_setaffinity(entry.process.pid, program.cores)
        return entry.process

    async def _reap(self, entries: Sequence[Running]) -> None:
        """Hear of every end while this loop is there to hear of it: asyncio complains of one that comes later."""
        ends = [asyncio.ensure_future(r.process.wait()) for r in entries if r.process is not None]
        if ends:
            await asyncio.wait(ends, timeout=KILL_S)
        for end in ends:
            end.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_result(error)

    async def _end(self, entries: Sequence[Running], grace_s: float) -> None:
        groups = [r.process.pid for r in entries if r.process is not None and alive(r.process.pid)]
        for group in groups:
            _signal_group(group, signal.SIGTERM)
        if not await _gone(groups, grace_s):
            for group in groups:
                _kill_group(group)
            await _gone(groups, KILL_S)


async def _gone(groups: Sequence[int], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(alive, groups)):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill_group(group: int) -> None:
    _signal_group(group, signal.SIGKILL)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _lines(entry: Running) -> list[str]:
    with entry.program.log.open("rb") as file:
        file.seek(entry.log_offset)
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]


def _tail(entry: Running) -> str:
    return "\n".join("  " + line for line in _lines(entry)[-LOG_LINES_QUOTED:])[-LOG_CHARACTERS_QUOTED:]


def _user_sentence(entry: Running) -> str:
    """What the service said for the user before it left with status 2: its last line that begins with its name."""
    lines = _lines(entry)
    prefix = (entry.program.spoken_name or entry.program.name) + ": "
    said = [line for line in lines if line.startswith(prefix)]
    last = (said or lines or ["it gave no reason"])[-1]
    return f"{entry.program.name}: {last.removeprefix(prefix)}"
