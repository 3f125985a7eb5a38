"""One session of a run: from no process to the last step, a failure or Ctrl-C, and back to no process.

Redis -> replay, env_search -> learner, actors        events are recorded and shown all the while
the learner exits 0 (all steps trained, the last evaluation is in) -> everything else is ended, Redis last; actors may
have left by then
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import redis.asyncio

from cli.run import local_redis, plan
from cli.run.listener import RETRY_S, Listener
from cli.run.memory import together
from cli.run.pins import share
from cli.run.plan import ServiceSpec
from cli.run.processes import Program, Supervisor
from cli.run.progress import Screen
from cli.run.readiness import Readiness
from cli.run.recorder import Recorder
from cli.run.untrained import LOCK
from cli.run.view import RunView
from shared.cancellation import stop
from shared.config import Config
from shared.errors import UserError
from shared.files import hold
from shared.heartbeats import alive
from shared.redis_client import connect_async, is_replica, wait_until_up
from shared.streams import Keys

LOOK_S, SHOW_S, MEMORY_S = 1.0, 0.5, 2.0
LIGHT_FIRST_S = 3.0  # how long the heavy services let the light ones start alone
SLOW_START_S = 180.0
FINISHED_EVENT_S = 2.0
LIGHT = ("replay", "env_search")
REDIS_NAME = "redis"
UNWATCHED = (
    "the process that ends all others when this command is killed was killed itself: the run goes on; end it with "
    "Ctrl-C, since after a kill its services would stay"
)


@dataclass(frozen=True)
class Outcome:
    """How a session ended, when it did not fail."""

    finished: bool
    stop_seconds: float


class Session:
    """The processes of one run while the command is there."""

    def __init__(
        self,
        config: Config,
        screen: Screen,
        cores: Sequence[int],
        enough: Callable[[dict[str, Any]], bool] = lambda event: False,
    ) -> None:
        """`enough`: of an event, whether the run may stop before its last step; `had_enough` says that it did."""
        self.config, self.screen, self._enough, self.had_enough = config, screen, enough, False
        self.run_dir = config.run_dir
        self.specs, self._kept = plan.services_of(config, cores), share(config, cores).kept
        self.started = time.time()
        self.view = RunView(config.run.name, config.run.steps, self.started)
        self.recorder = Recorder(self.run_dir)
        self._watchers: list[asyncio.Task[None]] = []
        self._stop, self._light_up = asyncio.Event(), asyncio.Event()
        self._unwatched = False
        self._events = Listener(config, self.view, self.recorder, self._on_event)

    async def run(self) -> Outcome:
        """Start everything, wait for the end, end everything. Raises UserError with what a service said."""
        c = self.config
        self.recorder.note("session", pid=os.getpid(), steps=c.run.steps, env_latency=c.env.latency)
        supervisor = Supervisor(self._on_restart, self.config.run.stop_s)
        self._catch_signals()
        finished = False
        try:
            finished = await self._run(supervisor)
        finally:
            began = time.monotonic()
            self.view.phase = "stopping"
            self._draw()
            await supervisor.stop(at_once=not self.recorder.is_in_place())  # nothing is saved where the folder was
            stop_seconds = time.monotonic() - began
            with suppress(OSError):
                self.recorder.note("stopped", seconds=round(stop_seconds, 3))
            self.recorder.close()
        return Outcome(finished, stop_seconds)

    async def _run(self, supervisor: Supervisor) -> bool:
        url = self.config.redis.url or await self._start_redis(supervisor)
        if url is None:
            return False
        client = connect_async(url)
        watching = (
            self._events.follow(client),
            self._look(client, supervisor),
            self._weigh(supervisor),
            self._show(),
            self._stay(),
        )
        self._watchers = [asyncio.ensure_future(work) for work in watching]
        try:
            await self._start_services(supervisor, url)
            finished = await self._until_the_end(supervisor)
            await self._events.drain(client)
            self.recorder.check_place()
            return finished
        finally:
            await stop(*self._watchers)
            with suppress(redis.RedisError, OSError):
                await client.aclose()

    async def _start_redis(self, supervisor: Supervisor) -> str | None:
        server = local_redis.prepare(self.run_dir, self.config.redis.max_memory_bytes)
        program = Program(
            REDIS_NAME,
            server.command,
            os.environ,
            self._log(REDIS_NAME),
            last=True,
            cores=self._kept.get(REDIS_NAME, ()),
        )
        supervisor.start(program)
        await self._until_answers(server.url, supervisor)
        return None if self._stop.is_set() else server.url

    async def _until_answers(self, url: str, supervisor: Supervisor) -> None:
        await self._first_of(_answers(url), supervisor)

    async def _start_services(self, supervisor: Supervisor, url: str) -> None:
        light = [s for s in self.specs if s.service in LIGHT]
        heavy = [s for s in self.specs if s not in light]
        for spec in light:
            supervisor.start(self._program(spec, url))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._light_up.wait(), LIGHT_FIRST_S)
        for spec in heavy:
            supervisor.start(self._program(spec, url))

    async def _until_the_end(self, supervisor: Supervisor) -> bool:
        """True when the learner has finished, False when the user stopped it; UserError when a service failed."""
        await self._first_of(supervisor.finished("learner"), supervisor)
        return supervisor.running["learner"].done.is_set()

    async def _first_of(self, work: Coroutine[Any, Any, None], supervisor: Supervisor) -> None:
        """Wait for `work`, a failure (raised, one of our own watchers' too) or a stop."""
        done = asyncio.ensure_future(work)
        failed = asyncio.ensure_future(supervisor.failure())
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({done, failed, stopped, *self._watchers}, return_when=asyncio.FIRST_COMPLETED)
        for task in (done, failed, stopped):
            if not task.done():
                task.cancel()
        if failed.done() and not failed.cancelled():
            self.recorder.check_place()  # of which a service may have died
            raise failed.result()
        for watcher in self._watchers:
            if watcher.done():
                watcher.result()
        if done.done() and not done.cancelled():
            done.result()

    def _program(self, spec: ServiceSpec, url: str) -> Program:
        return Program(
            name=spec.name,
            command=[sys.executable, "-P", "-m", spec.module],
            environment=plan.child_environment(self.run_dir / "config.toml", url, spec.environment),
            log=self._log(spec.name),
            spoken_name=spec.service,
            is_done=self._is_over if spec.may_finish else None,
            cores=spec.cores,
        )

    async def _is_over(self) -> bool:
        """Whether the run was declared finished; who was merely asked to leave exits with 0 as well."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._events.over.wait(), FINISHED_EVENT_S)
        return self._events.over.is_set()

    def _log(self, name: str) -> Path:
        return self.run_dir / "logs" / f"{name}.log"

    def _on_restart(self, sentence: str) -> None:
        self.view.warn(sentence, time.time())
        with suppress(OSError):  # the disk is full, which the listener says: the run goes on
            self.recorder.note("restart", text=sentence)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means what it says
                loop.add_signal_handler(number, self._stop.set)

    def _on_event(self, record: dict[str, Any]) -> None:
        if self._enough(record):
            self.had_enough = True
            self._stop.set()

    async def _look(self, client: redis.asyncio.Redis, supervisor: Supervisor) -> None:
        """Keep the list of live actors and of services that are not up yet."""
        readiness = Readiness(self.config, client, self.started)
        keys = Keys(self.config.run.name)
        try:
            while True:
                with suppress(redis.RedisError, OSError):
                    if await is_replica(client):
                        self.view.wait_for_primary(time.time())
                    else:
                        self.view.actors = await alive(client, keys)
                        await self._look_for_ready(readiness, supervisor)
                await asyncio.sleep(LOOK_S if not self.view.waiting_for else LOOK_S / 5)
        finally:
            await readiness.close()

    async def _look_for_ready(self, readiness: Readiness, supervisor: Supervisor) -> None:
        waiting = []
        for spec in self.specs:
            if spec.name in self.view.ready:
                continue
            entry = supervisor.running.get(spec.name)
            if entry and await readiness.is_up(spec.service, entry.pid, self.view.actors):
                seconds = round(time.monotonic() - entry.started, 2)
                self.view.ready[spec.name] = seconds
                self.recorder.note("ready", service=spec.name, seconds=seconds)
            else:
                waiting.append(spec.name)
        self.view.waiting_for = waiting
        if not any(spec.name in waiting for spec in self.specs if spec.service in LIGHT):
            self._light_up.set()
        if waiting and time.time() - self.started > SLOW_START_S and not self.view.warning:
            self.view.warn(
                f"{', '.join(waiting)} not ready after {SLOW_START_S:g} s: see {self._log(waiting[0])}", time.time()
            )

    async def _weigh(self, supervisor: Supervisor) -> None:
        """Sample the memory of all processes together; a new peak is recorded."""
        recorded = 0
        while True:
            self._say_unwatched(supervisor)
            pids = [os.getpid(), *supervisor.pids()]
            size, kind = await asyncio.to_thread(together, pids)
            self.view.memory_bytes, self.view.memory_kind = size, kind
            if size > self.view.peak_memory_bytes:
                self.view.peak_memory_bytes = size
            if self.view.peak_memory_bytes > 1.01 * recorded:
                with suppress(OSError):  # the disk is full: tried again
                    self.recorder.note("memory", peak_bytes=self.view.peak_memory_bytes, measure=kind)
                    recorded = self.view.peak_memory_bytes
            await asyncio.sleep(MEMORY_S)

    def _say_unwatched(self, supervisor: Supervisor) -> None:
        if supervisor.unwatched and not self._unwatched:
            self._unwatched = True
            self.view.warn(UNWATCHED, time.time())
            with suppress(OSError):  # the disk is full
                self.recorder.note("warning", service="up", text=UNWATCHED)

    async def _stay(self) -> None:
        """UserError once the run's folder is elsewhere: services would begin another in its place."""
        while True:
            self.recorder.check_place()
            await asyncio.sleep(LOOK_S)

    async def _show(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(SHOW_S)

    def _draw(self) -> None:
        with suppress(OSError):  # the terminal is gone, or nobody reads the pipe: the run goes on
            self.screen.show(self.view)


async def _answers(url: str) -> None:
    """Wait until Redis answers, in short tries, so that Ctrl-C is never kept waiting."""
    deadline = time.monotonic() + local_redis.START_S
    while True:
        try:
            return await asyncio.to_thread(wait_until_up, url, 0.1)
        except UserError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(RETRY_S / 5)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A run that has ended gets its artefacts, a second or two, whatever signal comes."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lock(run_dir: Path) -> IO[str]:
    """Hold the run's folder while the returned file is open. UserError when another command holds it."""
    return hold(run_dir / LOCK, running(run_dir))


def running(run_dir: Path) -> str:
    """What is said of a folder that another command holds."""
    return f"the run in {run_dir} is running already: stop it first, or choose another run.name."
