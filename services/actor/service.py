"""The actor process: tasks in, groups out, weights followed, and nothing of a task lost when it dies.

tasks  -> Tasks: begin when the weights are new enough -> roll_out -> group and end of task stored in one call
weights -> Follower: swap between two tokens of whatever is running
heartbeat: who I am, what I run; renews the entries that run. Watch: an engine that is stuck ends the process, and so
does the end of the run.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import redis

from services.actor import heartbeat, metrics
from services.actor.engines.choice import make_engine
from services.actor.engines.engine import Engine, EngineFailed
from services.actor.follower import Follower
from services.actor.metered import MeteredEngine
from services.actor.retrieval import RetrievalClient
from services.actor.rollout import Budget, Player
from services.actor.run_over import RunOver, raise_if_over, watch_end
from services.actor.tasks import Tasks
from services.actor.text import Codec
from services.actor.troubles import TROUBLES
from services.actor.wire import Wire
from shared.cancellation import raise_if_cancelled, to_the_end
from shared.config import Config
from shared.fingerprints import fingerprints
from shared.gpu_lease import GpuLease, until_claimed
from shared.latency import parse_latency
from shared.metrics import export_gpu_wait, open_metrics, watch_loop_lag
from shared.model_files import find_model
from shared.redis_client import connect_async, until_up
from shared.service import first_error

log = logging.getLogger("headrace")
LEAVE_S = 2.0  # for each of the two parts of leaving


async def serve(config: Config, engine: Engine | None = None) -> None:
    """Run until cancelled or the run is over.

    Raises UserError for what a person can mend, EngineFailed when the engine is broken.
    """
    await until_up(config.redis.url, config.redis.wait_s)
    lease = GpuLease(config, "actor", config.actor.tensor_parallel)
    # before the wait: who waits for a GPU is well, and says so
    server = open_metrics(config.actor.port, config.run.metrics_host, lambda: lease.waiting_for)
    export_gpu_wait("actor", lambda: lease.waiting_s)
    try:
        async with connect_async(config.redis.url) as client:
            await until_claimed(lease, lambda: raise_if_over(config, client))
        made = engine or make_engine(config)  # imports torch, which sees the claimed GPUs alone
        actor = Actor(config, made, server.server_port)
        try:
            await actor.run()
        finally:
            await to_the_end(actor.close())
    except RunOver as over:
        log.info("%s: this actor leaves", over)
    finally:
        await asyncio.to_thread(lease.release)


class Actor:
    """One actor and its loops."""

    def __init__(self, config: Config, engine: Engine, port: int = 0) -> None:
        """`port`: of its metrics."""
        self.config, self.engine = config, MeteredEngine(engine)
        self.wire = Wire(config)
        self.follower = Follower(config, self.engine, self.wire, self._swapped, self._beat)
        self.tasks = Tasks(config, self.wire, self.follower)
        self.port = port
        self.ready = False
        self._retriever: RetrievalClient | None = None

    async def run(self) -> None:
        """All loops; the first that fails ends the actor."""
        log.info("actor %s: metrics on port %d", self.wire.name, self.port)
        # half a group's deadline: after a whole one its requests are given up, and nothing would seem to wait any more
        stuck_s = self.config.rollout.deadline_s / 2
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._renew())
                loops.create_task(self._report())
                loops.create_task(watch_loop_lag("actor"))
                loops.create_task(watch_end(self.config, self.wire.client))
                player, marks = await self._load()
                loops.create_task(self.follower.run())
                loops.create_task(self.tasks.run(player, marks))
                loops.create_task(heartbeat.watch_engine(self.engine, lambda: self.engine.busy, stuck_s))
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, EngineFailed):
                log.error("%s", error)
                with suppress(TimeoutError):  # Redis may be away as well
                    async with asyncio.timeout(LEAVE_S):
                        await self.wire.warn(f"actor {self.wire.name} ends: {error}")
            raise error from None

    async def close(self) -> None:
        """Hand the running tasks back, stop the engine, disappear; within about 4 s."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.tasks.stop()
                await heartbeat.sign_off(self.wire.client, self.wire.keys, self.wire.name)
        except (TimeoutError, redis.RedisError, OSError) as error:
            log.warning("left without signing off (%s): the running tasks are reclaimed later", error)
        self.follower.close()
        try:
            async with asyncio.timeout(LEAVE_S):
                if self._retriever is not None:
                    await self._retriever.close()
                await self.engine.close()
        except TimeoutError:
            log.warning("the engine did not stop in time")
        await self.wire.client.aclose()

    async def _load(self) -> tuple[Player, Callable[[], Awaitable[dict[str, str]]]]:
        c = self.config
        directory = find_model(c.model.path)
        codec = await asyncio.to_thread(Codec, directory)
        # once: this process goes on with what it has loaded, whatever becomes of the files
        loaded = await asyncio.to_thread(fingerprints, c, directory)
        started = time.monotonic()
        await heartbeat.start_engine(self.engine)
        if c.env.kind == "search":
            self._retriever = RetrievalClient.of(
                c,
                on_retry=metrics.RETRIES.inc,
                on_failure=metrics.RETRIEVAL_FAILURES.inc,
                on_answer=self._retrieved,
                latency=parse_latency(c.env.latency),
            )
        retriever = self._retriever

        async def marks() -> dict[str, str]:
            return loaded | {"index": await retriever.index() if retriever is not None else ""}

        self.ready = True
        log.info("engine %s is up after %.1f s", self.engine.name, time.monotonic() - started)
        return Player(self.engine, codec, Budget.of(c), retriever.search if retriever is not None else None), marks

    async def _swapped(self) -> None:
        self.tasks.wake()
        await self._beat()

    async def _renew(self) -> None:
        """Apart from the reports: a full server takes this, and lets those wait."""
        while True:
            raise_if_cancelled()
            await self.wire.call(self.tasks.renew)
            await asyncio.sleep(self.config.actor.heartbeat_s)

    async def _report(self) -> None:
        while True:
            raise_if_cancelled()
            await self._beat()
            await self._measure()
            for sentence in TROUBLES.told():
                await self.wire.warn(sentence)
            await asyncio.sleep(self.config.actor.heartbeat_s)

    def _retrieved(self, seconds: float) -> None:
        metrics.RETRIEVAL.observe(seconds)
        if seconds > self.config.env.timeout_s / 4:
            TROUBLES.note("slow", 1, f"{seconds:.1f} s")

    async def _measure(self) -> None:
        with suppress(redis.RedisError, OSError):  # the report finds out
            if text := await metrics.ROUND_TRIP.measure(self.wire.client):
                await self.wire.warn(text)

    async def _beat(self) -> None:
        version = self.engine.version
        fields = {
            "id": self.wire.name,
            "state": "running" if self.ready else "loading",
            "version": list(version) if version is not None else None,
            "refused": list(refused) if (refused := self.follower.refused) is not None else None,
            "loading": list(loading) if (loading := self.follower.loading) is not None else None,
            "engine": self.engine.name,
            "device": self.engine.device,
            "pid": os.getpid(),
            "host": self.wire.name.rsplit("-", 2)[0],
            "groups_running": len(self.tasks.running),
            "sampled_tokens": self.engine.sampled_tokens,
            "tokens_per_s": self.engine.tokens_per_s,
            "swaps": self.follower.swaps,
            "canary_refused": self.follower.refusals,
            "port": self.port,
            "memory": heartbeat.resident_bytes(),
            "time": time.time(),
        }
        await self.wire.call(lambda: heartbeat.report(self.wire.client, self.wire.keys, self.wire.name, fields))
