"""Takes tasks, rolls several out at once, stores their groups; a task that cannot be answered here is handed back.

An entry stays pending until its group is stored. Heartbeats renew the ones that run; what a dead actor left is
reclaimed, what a stopped one had is handed back at once. An actor that refused newer weights hands back the first task
that asks for them and reads no more, since those behind it ask for no older ones, until there are others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from redis.exceptions import ResponseError

from services.actor import metrics
from services.actor.follower import Follower
from services.actor.group import Group, check_task, is_of_one_learner, roll_out
from services.actor.retrieval import RetrievalFailed
from services.actor.rollout import Player
from services.actor.transcript import is_shown, transcript_event
from services.actor.troubles import TROUBLES
from services.actor.wire import Wire
from shared import streams
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.errors import UserError
from shared.group_store import GroupStore
from shared.messages import Malformed, Task, decode, encode
from shared.payload import encode_payload
from shared.streams import ACTORS, Entry, Inbox
from shared.versions import Version

log = logging.getLogger("headrace")
RECLAIM_MS = 15_000
_PAUSE_S = 1.0


class Tasks:
    """The tasks of one actor."""

    def __init__(self, config: Config, wire: Wire, follower: Follower) -> None:
        self.config, self.wire, self.follower = config, wire, follower
        self.inbox = Inbox(wire.client, wire.keys.tasks, ACTORS, wire.name, RECLAIM_MS)
        self.store = GroupStore(wire.client, wire.keys)
        self.running: dict[bytes, asyncio.Task[None]] = {}
        self._rollouts: dict[bytes, int] = {}  # of each running task, not ended; at least 1 until it is stored
        self._room = asyncio.Event()
        self._failed: BaseException | None = None
        self._held_off: Version | None = None  # the refused weights that a task was handed back for

    async def run(self, player: Player, fingerprints: Callable[[], Awaitable[dict[str, str]]]) -> None:
        """Keep up to actor.groups groups' worth of rollouts running: a group begins when there is room for all of its.

        Raises what ended a task in a way that is not the task's fault.
        """
        await self.wire.call(self.inbox.create)
        while True:
            raise_if_cancelled()
            if self._failed is not None:
                raise self._failed
            free = self._free_groups()
            if free <= 0 or self.follower.number < 0 or self._is_held_off():
                self._room.clear()
                with suppress(
                    TimeoutError
                ):  # not wait_for: Python 3.11's forgets a cancellation that comes with the event
                    async with asyncio.timeout(_PAUSE_S):
                        await self._room.wait()
                continue
            for entry in await self.wire.call(lambda free=free: self.inbox.read(free)):
                if entry.id not in self.running:
                    await self._begin(entry, player, fingerprints)

    def _free_groups(self) -> int:
        """How many more groups of the usual size fit. An evaluation has smaller tasks, so more of them run at once."""
        size = self.config.rollout.group_size
        return self.config.actor.groups - -(-sum(self._rollouts.values()) // size)

    def _is_held_off(self) -> bool:
        return self._held_off is not None and self._held_off == self.follower.refused

    def wake(self) -> None:
        """Something changed that tasks may have waited for."""
        self._room.set()

    async def renew(self) -> None:
        """Say that the running entries are still worked on."""
        with suppress(ResponseError):  # NOGROUP: an emptied server; the next read makes the group again
            await self.inbox.renew(id for id, job in self.running.items() if not job.done())

    async def stop(self) -> None:
        """End the running groups and hand every entry of ours back."""
        jobs = list(self.running.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        # asked of the server: a read that was cut off may have been given entries that never reached us
        with suppress(ResponseError):
            await self._hand_back(*[entry.id for entry in await self.inbox.own_pending(1000)])

    async def _begin(self, entry: Entry, player: Player, fingerprints: Callable[[], Awaitable[dict[str, str]]]) -> None:
        try:
            task = decode(entry.data, Task)
            check_task(task)
        except (Malformed, UserError) as error:
            await self._bury(entry, str(error))
            return
        job = asyncio.ensure_future(self._answer(entry, task, player, fingerprints))
        self.running[entry.id] = job
        self._rollouts[entry.id] = task.group_size
        metrics.RUNNING.set(len(self.running))
        job.add_done_callback(lambda job: self._ended(entry.id, job))

    def _rollout_ended(self, entry: bytes) -> None:
        if self._rollouts.get(entry, 0) > 1:
            self._rollouts[entry] -= 1
            self._room.set()

    def _ended(self, entry: bytes, job: asyncio.Task[None]) -> None:
        self.running.pop(entry, None)
        self._rollouts.pop(entry, None)
        metrics.RUNNING.set(len(self.running))
        if not job.cancelled() and (error := job.exception()) is not None:
            self._failed = error
        self._room.set()

    async def _answer(
        self, entry: Entry, task: Task, player: Player, fingerprints: Callable[[], Awaitable[dict[str, str]]]
    ) -> None:
        wait_s = self.config.rollout.deadline_s
        engine = self.follower.engine
        while True:
            if not await self.follower.wait_for(task.min_version, wait_s):
                if self.follower.refuses(task.min_version):
                    self._held_off = self.follower.refused
                else:
                    await self.wire.warn(
                        f"task {task.id} waited {wait_s:g} s for weights {task.min_version} and is handed back: the "
                        f"newest here are {engine.version}. Is the learner running?"
                    )
                await self._give_up(entry)
                return
            try:
                group = await roll_out(
                    task,
                    player,
                    self.config,
                    self.wire.name,
                    lambda: engine.version or Version(0, 0),
                    fingerprints,
                    ended=lambda: self._rollout_ended(entry.id),
                )
            except RetrievalFailed as error:
                log.warning("task %s is handed back: %s", task.id, error)
                TROUBLES.note("index", 1, f"because {error}")
                await asyncio.sleep(_PAUSE_S)
                await self._give_up(entry)
                return
            if is_of_one_learner(task, group.rollouts, self.config.replay.max_lag):
                await self._put(entry, task, group)
                return
            self._rollouts[entry.id] = task.group_size
            metrics.GROUPS.labels("again").inc()
            log.info("task %s is rolled out again: the learner resumed at an earlier version meanwhile", task.id)

    async def _put(self, entry: Entry, task: Task, group: Group) -> None:
        payload = encode_payload(group.payload) if group.payload is not None else b""
        header = msgspec.structs.replace(group.header, payload_bytes=len(payload))
        stored = await self.wire.call(lambda: self.store.store(task.id, encode(header), payload, entry.id))
        outcome = "duplicate" if not stored else "failed" if header.failure else "stored"
        metrics.GROUPS.labels(outcome).inc()
        if header.failure:
            await self.wire.warn(f"group {task.id} failed: {header.failure}")
        elif stored and is_shown(task):
            await self.wire.emit("rollout", **transcript_event(task, group))

    async def _give_up(self, entry: Entry) -> None:
        metrics.GROUPS.labels("handed_back").inc()
        await self.wire.call(lambda: self._hand_back(entry.id))

    async def _hand_back(self, *entries: bytes) -> None:
        """Make entries look idle for long, so that the next reader that looks takes them over."""
        if entries:
            await self.wire.client.xclaim(
                self.wire.keys.tasks, ACTORS, self.wire.name, 0, list(entries), idle=RECLAIM_MS + 1, justid=True
            )

    async def _bury(self, entry: Entry, reason: str) -> None:
        log.warning("a task was refused: %s", reason)
        metrics.GROUPS.labels("refused").inc()

        async def bury() -> None:
            async with self.wire.client.pipeline(transaction=True) as pipe:
                streams.bury(pipe, self.wire.keys, f"actor {self.wire.name}", reason, entry.data)
                streams.ack(pipe, self.wire.keys.tasks, ACTORS, entry.id)
                await pipe.execute()

        await self.wire.call(bury)
