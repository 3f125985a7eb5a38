"""The actor process: tasks in, groups out, weights followed, and nothing of a task lost when it dies.

    tasks --Inbox--> begin when the weights are new enough --> roll_out --> GroupStore (group + end of task, one call)
    weights --XREAD--> swap between two tokens of whatever is running

A task's entry stays pending until its group is stored; heartbeats renew it. An actor that dies leaves it to be reclaimed, one
that is stopped hands it back.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import redis.asyncio
from redis.exceptions import ResponseError

from services.actor import heartbeat, metrics
from services.actor.engine import CanaryRefused, Engine, EngineFailed, find_model, make_engine
from services.actor.group import Group, check_task, roll_out
from services.actor.metered import MeteredEngine
from services.actor.outage import through_outage
from services.actor.retrieval import RetrievalFailed, Retriever
from services.actor.rollout import Budget, Player
from services.actor.text import Codec
from services.actor.transcript import is_shown, transcript_event
from shared import events, streams
from shared.config import Config
from shared.errors import UserError
from shared.fingerprints import fingerprints
from shared.messages import Malformed, Task, WeightsNotice, decode, encode
from shared.metrics import serve_metrics, watch_loop_lag
from shared.payload import encode_payload
from shared.redis_client import BLOCK_MS, connect_async, wait_until_up
from shared.streams import ACTORS, Entry, GroupStore, Inbox, Keys
from shared.versions import Version

log = logging.getLogger("headrace")
T = TypeVar("T")

RECLAIM_MS = 15_000
LEAVE_S = 4.0
_RETRY_PAUSE_S = 1.0


async def serve(config: Config, engine: Engine | None = None) -> None:
    """Run until cancelled. Raises UserError for what a person can mend, EngineFailed when the engine is broken."""
    await asyncio.to_thread(wait_until_up, config.redis.url, config.redis.wait_s)
    actor = Actor(config, engine or make_engine(config))
    try:
        await actor.run()
    finally:
        await actor.close()


class Actor:
    """One actor: the loops of `run` share its few fields and nothing else."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self.config, self.engine = config, MeteredEngine(engine)
        self.name = heartbeat.actor_name()
        self.keys = Keys(config.run.name)
        self.client = connect_async(config.redis.url)
        self.inbox = Inbox(self.client, self.keys.tasks, ACTORS, self.name, RECLAIM_MS)
        self.store = GroupStore(self.client, self.keys)
        self.running: dict[bytes, asyncio.Task[None]] = {}
        self.swaps = self.refusals = 0
        self.port = 0
        self.ready = False
        self._room = asyncio.Event()
        self._swapped = asyncio.Condition()
        self._directory = Path()
        self._retriever: Retriever | None = None
        self._player: Player | None = None
        self._failed: BaseException | None = None

    async def run(self) -> None:
        """All loops; the first that fails ends the actor."""
        self.port = serve_metrics(self.config.actor.port)
        log.info("actor %s: metrics on port %d", self.name, self.port)
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._report())
                loops.create_task(watch_loop_lag("actor"))
                await self._load()
                loops.create_task(self._follow_weights())
                loops.create_task(self._take_tasks())
                loops.create_task(
                    # half a group's deadline: after a whole one its requests are gone, and nothing would seem to wait
                    heartbeat.watch_engine(
                        self.engine, lambda: self.engine.requests > 0, self.config.rollout.deadline_s / 2
                    )
                )
        except BaseExceptionGroup as group:
            error = _first(group)
            if isinstance(error, EngineFailed):
                log.error("%s", error)
                await asyncio.wait_for(self._warn(f"actor {self.name} ends: {error}"), LEAVE_S)
            raise error from None

    async def close(self) -> None:
        """Give the running tasks back, stop the engine, disappear; at most about 5 s."""
        jobs = list(self.running.values())
        for job in jobs:
            job.cancel()
        try:
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(*jobs, return_exceptions=True)
                # asked of the server: a read that was cut off may have been given entries that never reached us
                await self._hand_back(*[entry.id for entry in await self.inbox.own_pending(1000)])
                await heartbeat.sign_off(self.client, self.keys, self.name)
        except (TimeoutError, redis.RedisError, OSError) as error:
            log.warning("left without signing off (%s): the running tasks are reclaimed later", error)
        try:
            async with asyncio.timeout(LEAVE_S):
                if self._retriever is not None:
                    await self._retriever.__aexit__()
                await self.engine.close()
        except TimeoutError:
            log.warning("the engine did not stop in time")
        await self.client.aclose()

    async def _load(self) -> None:
        c = self.config
        self._directory = find_model(c.model.path)
        codec = await asyncio.to_thread(Codec, self._directory)
        started = time.monotonic()
        await self.engine.start()
        search = None
        if c.env.kind == "search":
            self._retriever = Retriever(
                c.env.url,
                topk=c.env.topk,
                timeout_s=c.env.timeout_s,
                retries=c.env.retries,
                max_query_chars=c.search.max_query_chars,
                on_retry=metrics.RETRIES.inc,
            )
            search = self._retriever.search
        budget = Budget(
            max_tokens=c.rollout.max_tokens,
            max_turn_tokens=c.rollout.max_turn_tokens,
            max_turns=c.env.max_turns,
            max_observation_tokens=c.env.max_observation_tokens,
        )
        self._player = Player(self.engine, codec, budget, search)
        self.ready = True
        log.info("engine %s is up after %.1f s", self.engine.name, time.monotonic() - started)

    # --- tasks

    async def _take_tasks(self) -> None:
        await self._redis(self.inbox.create)
        while True:
            free = self.config.actor.groups - len(self.running)
            if free <= 0 or self.engine.version is None:
                self._room.clear()
                await self._wait(self._room.wait(), 1.0)
                continue
            for entry in await self._redis(lambda free=free: self.inbox.read(free)):
                if entry.id not in self.running:
                    await self._begin(entry)

    async def _begin(self, entry: Entry) -> None:
        try:
            task = decode(entry.data, Task)
            check_task(task)
        except (Malformed, UserError) as error:
            await self._bury(entry, str(error))
            return
        job = asyncio.ensure_future(self._answer(entry, task))
        self.running[entry.id] = job
        metrics.RUNNING.set(len(self.running))
        job.add_done_callback(lambda job: self._ended(entry.id, job))

    def _ended(self, entry: bytes, job: asyncio.Task[None]) -> None:
        self.running.pop(entry, None)
        metrics.RUNNING.set(len(self.running))
        self._room.set()
        if not job.cancelled() and (error := job.exception()) is not None:
            log.error("a group failed in a way nobody expected", exc_info=error)
            self._failed = error

    async def _answer(self, entry: Entry, task: Task) -> None:
        """Roll one task out and store it. Whatever goes wrong outside our control leaves the task for another try."""
        if not await self._new_enough(task):
            metrics.GROUPS.labels("handed_back").inc()
            await self._redis(lambda: self._hand_back(entry.id))
            return
        assert self._player is not None
        try:
            group = await roll_out(task, self._player, self.config, self.name, self._version, self._fingerprints)
        except RetrievalFailed as error:
            log.warning("task %s is handed back: %s", task.id, error)
            metrics.GROUPS.labels("handed_back").inc()
            await asyncio.sleep(_RETRY_PAUSE_S)
            await self._redis(lambda: self._hand_back(entry.id))
            return
        except EngineFailed as error:
            self._failed = error  # ends the actor, which hands the task back
            return
        await self._put(entry, task, group)

    async def _put(self, entry: Entry, task: Task, group: Group) -> None:
        payload = encode_payload(group.payload) if group.payload is not None else b""
        header = msgspec.structs.replace(group.header, payload_bytes=len(payload))
        stored = await self._redis(lambda: self.store.store(task.id, encode(header), payload, entry.id))
        outcome = "duplicate" if not stored else "failed" if header.failure else "stored"
        metrics.GROUPS.labels(outcome).inc()
        if header.failure:
            await self._warn(f"group {task.id} failed: {header.failure}")
        elif stored and is_shown(task):
            await self._emit("rollout", **transcript_event(task, group))

    async def _new_enough(self, task: Task) -> bool:
        """Wait for weights `task` may be answered with; False after the deadline."""
        if self._number() >= task.min_version:
            return True
        wait_s = self.config.rollout.deadline_s
        metrics.WAITING.inc()
        try:
            async with asyncio.timeout(wait_s), self._swapped:
                await self._swapped.wait_for(lambda: self._number() >= task.min_version)
            return True
        except TimeoutError:
            await self._warn(
                f"task {task.id} waited {wait_s:g} s for weights {task.min_version}, and the newest here are "
                f"{self.engine.version}: is the learner running?"
            )
            return False
        finally:
            metrics.WAITING.dec()

    async def _fingerprints(self) -> dict[str, str]:
        index = await self._retriever.index() if self._retriever is not None else ""
        return fingerprints(self.config, self._directory, index)

    async def _hand_back(self, *entries: bytes) -> None:
        """Make entries look idle for long, so that the next reader that looks takes them over."""
        if entries:
            await self.client.xclaim(
                self.keys.tasks, ACTORS, self.name, 0, list(entries), idle=RECLAIM_MS + 1, justid=True
            )

    async def _bury(self, entry: Entry, reason: str) -> None:
        log.warning("a task was refused: %s", reason)
        metrics.GROUPS.labels("refused").inc()

        async def bury() -> None:
            async with self.client.pipeline(transaction=True) as pipe:
                streams.bury(pipe, self.keys, f"actor {self.name}", reason, entry.data)
                streams.ack(pipe, self.keys.tasks, ACTORS, entry.id)
                await pipe.execute()

        await self._redis(bury)

    # --- weights

    async def _follow_weights(self) -> None:
        """The newest notice there is, then each new one as it is pushed; notices that were overtaken are skipped."""
        latest = await self._redis(lambda: self.client.xrevrange(self.keys.weights, count=1))
        last: Any = b"0"
        while True:
            for id, fields in latest[-1:]:
                last = id
                await self._adopt(fields[streams.FIELD])
            reply = await self._redis(lambda last=last: self.client.xread({self.keys.weights: last}, 64, BLOCK_MS))
            latest = reply[0][1] if reply else []

    async def _adopt(self, data: bytes) -> None:
        try:
            notice = decode(data, WeightsNotice)
        except Malformed as error:
            log.error("a weights notice is not readable: %s", error)
            return
        if notice.version == self.engine.version:
            return
        directory = self.config.weights_dir / notice.location
        try:
            await self._wait_for_files(directory)
            async with asyncio.timeout(self.config.weights.swap_timeout_s):
                stall = await self.engine.swap(notice, directory)
        except CanaryRefused as error:
            self.refusals += 1
            metrics.REFUSED.inc()
            log.error("weights %s are refused, %s stay in force: %s", notice.version, self.engine.version, error)
            await self._emit("refused", actor=self.name, version=str(notice.version), reason=str(error))
            return
        except TimeoutError:
            raise EngineFailed(f"the swap to weights {notice.version} did not end within its time limit") from None
        self.swaps += 1
        metrics.SWAP.observe(stall)
        metrics.VERSION.set(notice.version.number)
        seconds = time.time() - notice.published
        log.info("weights %s in force, %.3f s after they were published (stall %.3f s)", notice.version, seconds, stall)
        async with self._swapped:
            self._swapped.notify_all()
        self._room.set()
        await self._emit("swap", actor=self.name, version=str(notice.version), seconds=seconds, stall_s=stall)
        await self._beat()

    async def _wait_for_files(self, directory: Path) -> None:
        """A network folder may show a directory a little after it is announced."""
        for _ in range(20):
            if await asyncio.to_thread(directory.is_dir):
                return
            await asyncio.sleep(0.1)

    # --- reports

    async def _report(self) -> None:
        while True:
            await self._beat()
            self._raise_if_failed()
            await asyncio.sleep(self.config.actor.heartbeat_s)

    async def _beat(self) -> None:
        version = self.engine.version
        fields = {
            "id": self.name,
            "state": "running" if self.ready else "loading",
            "version": list(version) if version is not None else None,
            "engine": self.engine.name,
            "pid": os.getpid(),
            "host": self.name.rsplit("-", 2)[0],
            "groups_running": len(self.running),
            "sampled_tokens": self.engine.sampled_tokens,
            "tokens_per_s": self.engine.tokens_per_s,
            "swaps": self.swaps,
            "canary_refused": self.refusals,
            "port": self.port,
            "memory": heartbeat.resident_bytes(),
            "time": time.time(),
        }
        await self._redis(lambda: heartbeat.report(self.client, self.keys, self.name, fields))
        await self._redis(lambda: self._renew())

    async def _renew(self) -> None:
        try:
            await self.inbox.renew(id for id, job in self.running.items() if not job.done())
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise  # an emptied server: the group is made again by the next read

    async def _warn(self, text: str) -> None:
        log.warning("%s", text)
        await self._emit("warning", source=self.name, text=text)

    async def _emit(self, kind: str, **fields: Any) -> None:
        await self._redis(lambda: events.emit(self.client, self.keys, kind, **fields))

    async def _redis(self, call: Callable[[], Awaitable[T]]) -> T:
        return await through_outage(call, self.config.redis.wait_s)

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _version(self) -> Version:
        return self.engine.version or Version(0, 0)

    def _number(self) -> int:
        return self.engine.version.number if self.engine.version is not None else -1

    @staticmethod
    async def _wait(awaitable: Awaitable[Any], seconds: float) -> None:
        try:
            await asyncio.wait_for(awaitable, seconds)
        except TimeoutError:
            pass


def _first(group: BaseExceptionGroup) -> BaseException:
    """The first leaf of a group of errors: what ended the actor."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
