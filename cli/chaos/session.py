"""A run like any other, whose services reach Redis and the retriever through links, and are struck while it trains.

    all services are up --> faults at their moments --> quiet: the run trains its last steps, or stands still

A run that stands still for STILL_S behind the last fault is ended: that is a fault of ours.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cli.chaos.faults import Inflicted, Inflictor
from cli.chaos.proxy import Link
from cli.chaos.schedule import REDIS, SEARCH, Fault
from cli.run import local_redis, plan
from cli.run.plan import ServiceSpec
from cli.run.processes import Program, Supervisor
from cli.run.progress import Screen
from cli.run.session import REDIS_NAME, Outcome, Session
from shared.cancellation import stop
from shared.config import Config

STILL_S = 300.0
LOOK_S = 1.0
# a file that may not grow is an error to Redis, as a full disk is, instead of a signal that ends it
IGNORE_XFSZ = ["sh", "-c", 'trap "" XFSZ; exec "$@"', "sh"]


class ChaosSession(Session):
    """`inflicted`: what has happened to it. `stood_still`: whether it stopped making progress when nothing hurt it."""

    def __init__(self, config: Config, screen: Screen, cores: Sequence[int], faults: list[Fault], seed: int) -> None:
        super().__init__(config, screen, cores)
        self.inflicted: list[Inflicted] = []
        self.stood_still = False
        self._faults, self._seed = faults, seed
        self._links: dict[str, Link] = {}
        self._ports: dict[str, int] = {}
        self._refused: set[str] = set()  # versions
        self._progress = time.monotonic()

    async def run(self) -> Outcome:
        """As any session, through links that are there until every process has left."""
        try:
            return await super().run()
        finally:
            for link in self._links.values():
                await link.close()

    async def _start_redis(self, supervisor: Supervisor) -> str | None:
        server = local_redis.prepare(self.run_dir, self.config.redis.max_memory_bytes, keep_history=True)
        command = [*IGNORE_XFSZ, *server.command]
        supervisor.start(Program(REDIS_NAME, command, os.environ, self._log(REDIS_NAME), last=True))
        await self._until_answers(server.url, supervisor)
        return None if self._stop.is_set() else server.url

    async def _start_services(self, supervisor: Supervisor, url: str) -> None:
        for spec in self.specs:
            if spec.service != SEARCH:
                await self._link(f"{spec.name}-{REDIS}", urlsplit(url).port or 0)
            if spec.service == "actor" and plan.serves_search(self.config):
                await self._link(f"{spec.name}-{SEARCH}", self.config.search.port)
        await super()._start_services(supervisor, url)

    async def _until_the_end(self, supervisor: Supervisor) -> bool:
        self._watchers.append(asyncio.ensure_future(self._hurt(supervisor)))
        try:
            return await super()._until_the_end(supervisor)
        finally:
            for link in self._links.values():
                link.mend()

    async def _link(self, name: str, port: int) -> None:
        self._links[name] = Link(port)
        self._ports[name] = await self._links[name].start()

    def _program(self, spec: ServiceSpec, url: str) -> Program:
        program = super()._program(spec, url)
        own = dict(program.environment)
        if port := self._ports.get(f"{spec.name}-{REDIS}"):
            own["HEADRACE_REDIS__URL"] = _at_port(url, port)
        if port := self._ports.get(f"{spec.name}-{SEARCH}"):
            own["HEADRACE_ENV__URL"] = _at_port(self.config.env.url, port)
        return Program(**{**vars(program), "environment": own})

    async def _hurt(self, supervisor: Supervisor) -> None:
        """Never returns: the run has an end of its own, or is ended here when it stands still."""
        folder = self.run_dir / local_redis.FOLDER
        inflictor = Inflictor(
            supervisor.running, self._links, self.config.weights_dir, folder, self._refused, self._seed
        )
        await self._until(lambda: len(self.view.ready) == len(self.specs))
        began = time.monotonic()
        under_way: list[asyncio.Task[None]] = []
        try:
            for fault in self._faults:
                await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
                under_way.append(asyncio.ensure_future(self._inflict(inflictor, fault)))
            await asyncio.gather(*under_way)
        finally:
            await stop(*under_way)
        self._progress = time.monotonic()
        await self._until(lambda: time.monotonic() - self._progress > STILL_S)
        self.stood_still = True
        self._stop.set()
        await asyncio.Event().wait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  it is asked of the clock and of a view, which announce nothing
            await asyncio.sleep(LOOK_S)

    async def _inflict(self, inflictor: Inflictor, fault: Fault) -> None:
        done = await inflictor.inflict(fault)
        self.inflicted.append(done)
        seconds = f" for {fault.seconds:.1f} s" if fault.seconds else ""
        self.recorder.note("fault", fault=fault.kind, target=done.target, seconds=fault.seconds, note=done.note)
        self.view.warn(f"chaos: {fault.kind} {done.target}{seconds}", time.time())

    def _on_event(self, record: dict[str, Any]) -> None:
        super()._on_event(record)
        if record["kind"] in ("step", "eval", "finished"):
            self._progress = time.monotonic()
        elif record["kind"] == "refused":
            self._refused.add(record["version"])


def _at_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    account, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{port}"))
