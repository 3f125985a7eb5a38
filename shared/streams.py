"""Streams with consumer groups: an entry is acknowledged only after its effect is durable, and never lost before.

    XADD --> new --XREADGROUP--> pending at one consumer --ack after the effect--> deleted
                                   | reader died, or stopped renewing
                                   +--XAUTOCLAIM after `reclaim_ms` idle--> pending at another consumer

Delivery is at least once; ids make it once in effect. Every stream has exactly one consumer group, so an entry is
deleted with its acknowledgement and nothing is ever trimmed ahead of it. Groups are created again whenever they are
missing (an emptied or restarted server).
"""

import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
from redis.exceptions import ResponseError

from shared.errors import UserError
from shared.redis_client import BLOCK_MS, is_full

T = TypeVar("T")

FIELD = b"m"
ACTORS, REPLAY, LEARNER = "actors", "replay", "learner"  # the consumer groups
SILENT_MS = 60_000  # a consumer that has not read for so long is none any more
DEAD_LETTERS_KEPT = 1000
DEAD_LETTER_BYTES = 65_536
EVENTS_KEPT = 20_000
LARGEST_COUNT = 2**31  # of steps, and of lives


def run_of(key: str) -> str | None:
    """The name of the run that a key belongs to; None of another's key."""
    begin, _, rest = key.partition("{")
    name, end, _ = rest.partition("}:")
    return name if begin == "headrace:" and end else None


class Keys:
    """The names of a run's keys. The braces put all of them into one cluster slot, so scripts may touch several."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.prefix = f"headrace:{{{run}}}:"
        self.tasks = self.prefix + "tasks"
        self.groups = self.prefix + "groups"
        self.work = self.prefix + "work"
        self.results = self.prefix + "results"
        self.weights = self.prefix + "weights"
        self.events = self.prefix + "events"
        self.dead = self.prefix + "dead"
        self.actors = self.prefix + "actors"  # set of actor ids that have reported
        self.replay = self.prefix + "replay:beat"  # its heartbeat
        self.state = self.prefix + "replay:state"  # JSON: replay's counters

    def payload(self, group: str) -> str:
        """The token arrays of a group."""
        return f"{self.prefix}payload:{group}"

    def reference(self, group: str) -> str:
        """l_ref of a group, float32[T] little-endian, written by the learner at the first pull."""
        return f"{self.prefix}ref:{group}"

    def actor(self, actor: str) -> str:
        """An actor's heartbeat; expires when it stops reporting."""
        return f"{self.prefix}actor:{actor}"


def saved_key(keys: Keys) -> str:
    """Steps below this number are in a checkpoint, and their batches are acknowledged; written by the learner."""
    return keys.prefix + "saved"


def count(value: Any, key: str) -> int:
    """The number that lies at `key`; 0 where it is missing. UserError for what is no such number."""
    if value is None:
        return 0
    if not (value.isdigit() and len(value) <= 10 and int(value) < LARGEST_COUNT):
        raise UserError(
            f"{key} in Redis holds {value[:20]!r}, which is no count that a run comes to: delete the key, and start "
            "what has stopped again."
        )
    return int(value)


@dataclass(frozen=True)
class Entry:
    """One delivered stream entry; `data` is its message."""

    stream: str
    id: bytes
    data: bytes


class Inbox:
    """The reading end of one stream for one consumer, on an event loop."""

    def __init__(
        self, client: redis.asyncio.Redis, stream: str, group: str, consumer: str, reclaim_ms: int = 0
    ) -> None:
        """`reclaim_ms`: how long another consumer's entry may stay untouched before it is taken over; 0: never."""
        self.client, self.stream, self.group, self.consumer = client, stream, group, consumer
        self.reclaim_ms = reclaim_ms
        self._next_reclaim = 0.0
        self._own_cursor: bytes | None = b"0"  # None: everything from before a restart has been delivered again

    async def read(self, count: int, block_ms: int = BLOCK_MS) -> list[Entry]:
        """Up to `count` entries: first this consumer's own from before a restart or an error, then dead ones', then
        new.

        Waits at most `block_ms`; an empty list means nothing came. After an error an entry may come a second time.
        """
        try:
            if self._own_cursor is not None:
                own = await self.own_pending(count, self._own_cursor)
                self._own_cursor = own[-1].id if own else None
                if own:
                    return own
            if self.reclaim_ms and time.monotonic() >= self._next_reclaim:
                self._next_reclaim = time.monotonic() + self.reclaim_ms / 4000
                if claimed := await self._claim(self.reclaim_ms, count):
                    return claimed
            reply = await self.client.xreadgroup(
                self.group, self.consumer, {self.stream: ">"}, count=count, block=block_ms
            )
            return _entries(self.stream, reply)
        except ResponseError as error:
            if not _group_is_missing(error):
                raise
            await self.create()
            return []
        except BaseException:
            self._own_cursor = b"0"  # the reply that was lost may have held entries
            raise

    async def take_over(self) -> None:
        """Make every pending entry of the group this consumer's own, and forget the other consumers."""
        await self.create()
        start: bytes = b"0-0"
        while True:
            reply = await self.client.xautoclaim(self.stream, self.group, self.consumer, 0, start, 1000, justid=False)
            start = reply[0]
            if start == b"0-0":
                break
        for other in await self.client.xinfo_consumers(self.stream, self.group):
            silent = other["idle"] > SILENT_MS  # what is delivered to one between the look and the deletion is lost
            if other["name"] != self.consumer.encode() and other["pending"] == 0 and silent:
                await self.client.xgroup_delconsumer(self.stream, self.group, other["name"])
        self._own_cursor = b"0"

    async def _claim(self, idle_ms: int, count: int) -> list[Entry]:
        start: bytes = b"0-0"
        while True:  # one call looks at no more than ten times `count` entries
            reply = await self.client.xautoclaim(
                self.stream, self.group, self.consumer, idle_ms, start_id=start, count=count
            )
            start = reply[0]
            if start == b"0-0" or reply[1]:
                return _claimed(self.stream, reply)

    async def own_pending(self, count: int, after: bytes = b"0") -> list[Entry]:
        """Entries delivered to this consumer and not yet acknowledged, from `after` on."""
        return _entries(
            self.stream, await self.client.xreadgroup(self.group, self.consumer, {self.stream: after}, count)
        )

    async def create(self) -> None:
        """Create the stream and its group where they are missing."""
        try:
            await self.client.xgroup_create(self.stream, self.group, id="0", mkstream=True)
        except ResponseError as error:
            if not (is_full(error) and await self._is_there()) and "BUSYGROUP" not in str(error):
                raise

    async def _is_there(self) -> bool:
        """A full server refuses to create what is there already."""
        try:
            groups: Any = await self.client.xinfo_groups(self.stream)
        except ResponseError:
            return False
        return any(group["name"] == self.group.encode() for group in groups)

    async def renew(self, ids: Iterable[bytes]) -> None:
        """Say that these entries are still being worked on, so that nobody takes them over."""
        if ids := list(ids):
            await self.client.xclaim(self.stream, self.group, self.consumer, 0, cast(Any, ids), justid=True)

    async def ack(self, *ids: bytes) -> None:
        """Acknowledge and delete."""
        async with self.client.pipeline(transaction=True) as pipe:
            ack(pipe, self.stream, self.group, *ids)
            await pipe.execute()


class SyncInbox:
    """The same for a plain loop (the learner), which takes up what was pending at its start by itself."""

    def __init__(self, client: redis.Redis, stream: str, group: str, consumer: str) -> None:
        self._client, self._inbox = client, Inbox(cast(Any, _AtOnce(client)), stream, group, consumer)
        self._inbox._own_cursor = None

    def read(self, count: int, block_ms: int = BLOCK_MS) -> list[Entry]:
        """Up to `count` new entries; after an error first what was pending then, so an entry may come a second time.

        Waits at most `block_ms`.
        """
        return _result(self._inbox.read(count, block_ms))

    def own_pending(self, count: int, after: bytes = b"0") -> list[Entry]:
        """Entries delivered to this consumer and not yet acknowledged, from `after` on."""
        return _result(self._inbox.own_pending(count, after))

    def create(self) -> None:
        """Create the stream and its group where they are missing."""
        _result(self._inbox.create())

    def ack(self, *ids: bytes) -> None:
        """Acknowledge and delete."""
        with self._client.pipeline(transaction=True) as pipe:
            ack(pipe, self._inbox.stream, self._inbox.group, *ids)
            pipe.execute()


class _AtOnce:
    """A plain client with the face of an asynchronous one: awaiting its commands runs them and never suspends."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def __getattr__(self, command: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            return getattr(self._client, command)(*args, **options)

        return call


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that never suspends returns or raises."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for an event loop")


def ack(pipe: Any, stream: str, group: str, *ids: bytes) -> None:
    """Queue acknowledging and deleting entries on a pipeline, so that it happens with the effect or not at all."""
    if ids:
        pipe.xack(stream, group, *ids)
        pipe.xdel(stream, *ids)


def add(pipe: Any, stream: str, data: bytes, keep: int | None = None) -> Any:
    """XADD one message; `keep` bounds streams that nobody acknowledges (weights, events)."""
    return pipe.xadd(stream, {FIELD: data}, maxlen=keep, approximate=keep is not None)


def bury(pipe: Any, keys: Keys, source: str, reason: str, data: bytes) -> None:
    """Queue a dead letter: what was refused, where, and why. Bounded in number and in size."""
    letter = {
        "source": source,
        "reason": reason[:500],
        "time": repr(time.time()),
        "data": data[:DEAD_LETTER_BYTES],
    }
    pipe.xadd(keys.dead, letter, maxlen=DEAD_LETTERS_KEPT, approximate=True)


def _group_is_missing(error: ResponseError) -> bool:
    """Whether the stream or its group is gone; a read that was waiting then is "UNBLOCKED"."""
    return str(error).startswith(("NOGROUP", "UNBLOCKED"))


def _entries(stream: str, reply: Any) -> list[Entry]:
    return [_entry(stream, id, fields) for _, items in reply or [] for id, fields in items if fields]


def _claimed(stream: str, reply: Any) -> list[Entry]:
    # Redis 6.2 reports a deleted entry as (id, None), Redis 7 in a list of its own
    return [_entry(stream, id, fields) for id, fields in reply[1] if id is not None and fields]


def _entry(stream: str, id: bytes, fields: dict[bytes, bytes]) -> Entry:
    return Entry(stream, id, fields.get(FIELD, b""))  # one without our field is a stranger's: refused like bad bytes
