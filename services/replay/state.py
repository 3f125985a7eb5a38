"""Everything replay knows that must outlive it, as it lies in Redis, and the one way to change it.

    replay:state      Counters                     replay:tasks      task id -> Task not answered yet
    replay:fresh      group id -> FreshGroup       replay:buffer     group id -> StoredGroup
    replay:batches    step -> Composed             replay:retired    group id -> Retired
    replay:kept       question -> Kept, a prompt that may be asked again
    replay:evals      round:number -> Outcome      replay:ledger     list of Trained steps, for audits
    replay:headers    group id -> GroupHeader while its payload is there; never loaded, read when a person asks

A change is a transaction: it alters the objects here and queues the same change, the messages it causes and the
acknowledgement of the entry that caused it, on one MULTI. If that fails in any way the objects are thrown away and
loaded again, so memory never runs ahead of Redis. An epoch, raised by each replay process at its start, keeps a
process that was presumed dead from writing; a server that has a lower one has lost the start of the younger.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import redis.asyncio
from redis.exceptions import RedisError

from services.replay import tables
from services.replay.buffer import Buffer, StoredGroup
from services.replay.kept import Kept
from services.replay.records import Composed, Counters, FreshGroup, Outcome, Retired
from shared import messages, streams
from shared.errors import UserError
from shared.events import emit, plain
from shared.messages import GroupHeader, Malformed, Task
from shared.streams import Keys

log = logging.getLogger("headrace.replay")
PAGE = 256  # entries of a table that are read and filed before others have their turn


class Emptied(RedisError):
    """The server has lost this run, or the end of it: what is here is void, and the state is loaded again."""


class Superseded(RuntimeError):
    """Another replay process has taken over this run."""


class State:
    """The objects, mirrored in Redis. Only a Transaction changes them."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.tasks: dict[str, Task] = {}
        self.fresh: dict[str, FreshGroup] = {}
        self.buffer = Buffer()
        self.batches: dict[int, Composed] = {}
        self.retired: dict[str, Retired] = {}
        self.evals: dict[str, Outcome] = {}
        self.kept: dict[str, Kept] = {}
        self.payload_bytes = 0  # what all groups take in Redis: fresh, stored and retired ones
        self.refused, self.refusal = 0, ""  # training prompts in a row that cannot be used, and why; not durable
        self.damaged: list[tables.Damaged] = []  # entries that the load left out, until they are dealt with


class Transaction:
    """Changes to the state and to Redis that take effect together."""

    def __init__(self, state: State, keys: Keys, pipe: Any) -> None:
        self.state, self.keys, self.pipe = state, keys, pipe
        self._changed: dict[str, dict[str, bytes | None]] = {}  # table -> field -> its new value; None: removed
        self._done: dict[str, list[bytes]] = {}  # stream -> entries to acknowledge

    def put(self, table: str, field: str, value: Any) -> None:
        """Set one entry of a table, here and there. Rows go to the buffer by `store` and `save_row`."""
        entries, key = getattr(self.state, table), int(field) if table == "batches" else field
        self.state.payload_bytes += _bytes(value) - _bytes(entries.get(key))
        entries[key] = value
        self._change(table, field, to=msgspec.msgpack.encode(value))

    def drop(self, table: str, field: str) -> Any:
        """Remove one entry of a table and return it."""
        self._change(table, field, to=None)
        value = getattr(self.state, table).pop(int(field) if table == "batches" else field)
        self.state.payload_bytes -= _bytes(value)
        return value

    def drop_all(self, table: str, fields: list[str]) -> list[Any]:
        """Remove entries of a table that has no payloads, however many, and return them."""
        entries = getattr(self.state, table)
        values = [entries.pop(field) for field in fields]
        if entries:
            self._change(table, *fields, to=None)
        else:
            self._changed.pop(table, None)
            self.pipe.unlink(_table(self.keys, table))
        return values

    def erase(self, table: str, fields: list[bytes]) -> None:
        """Take entries out of a table in Redis that are not here."""
        self.pipe.hdel(_table(self.keys, table), *fields)

    def store(self, row: StoredGroup) -> None:
        """Insert a group into the buffer."""
        self.state.buffer.insert(row)
        self.state.payload_bytes += row.bytes
        self.save_row(row.id)

    def save_row(self, id: str) -> None:
        """Make the current columns of a stored group durable."""
        if id in self.state.buffer:
            self._change("buffer", id, to=msgspec.msgpack.encode(self.state.buffer.row(id)))

    def discard(self, id: str) -> StoredGroup:
        """Take a group out of the buffer."""
        row = self.state.buffer.row(id)
        self.state.buffer.remove(id)
        self.state.payload_bytes -= row.bytes
        self._change("buffer", id, to=None)
        return row

    def retire(self, id: str, bytes: int) -> None:
        """Delete a group's payload once the current step is in a checkpoint."""
        self.put("retired", id, Retired(self.state.counters.step, bytes))

    def delete_payloads(self, ids: list[str]) -> None:
        """Delete the token arrays of these groups now."""
        if ids:
            self.pipe.unlink(*[key(id) for id in ids for key in (self.keys.payload, self.keys.reference)])
            self._change("headers", *ids, to=None)

    def keep_header(self, header: GroupHeader) -> None:
        """Keep how a group's rollouts ended for as long as its payload, for people."""
        self._change("headers", header.id, to=messages.encode(header))

    def send(self, stream: str, message: messages.Message) -> None:
        """Add a message to a stream."""
        streams.add(self.pipe, stream, messages.encode(message))

    def ack(self, entry: streams.Entry) -> None:
        """Acknowledge the entry that caused this."""
        self._done.setdefault(entry.stream, []).append(entry.id)

    def bury(self, entry: streams.Entry, reason: str) -> None:
        """Keep an unreadable entry as a dead letter and acknowledge it."""
        streams.bury(self.pipe, self.keys, entry.stream.removeprefix(self.keys.prefix), reason, entry.data)
        self.ack(entry)

    def note(self, record: dict[str, Any]) -> None:
        """Append to the ledger."""
        self.pipe.rpush(_table(self.keys, "ledger"), msgspec.json.encode(record))

    def event(self, kind: str, /, **fields: Any) -> None:
        """Tell people."""
        emit(self.pipe, self.keys, kind, **fields)

    def close(self) -> None:
        """Queue the changes of the tables and the acknowledgements: a command or two each, however many they are.

        A command costs the client more than the bytes it carries.
        """
        for table, fields in self._changed.items():
            key, gone = _table(self.keys, table), [field for field, value in fields.items() if value is None]
            if len(gone) < len(fields):
                self.pipe.hset(key, mapping={field: value for field, value in fields.items() if value is not None})
            if gone:
                self.pipe.hdel(key, *gone)
        for stream, ids in self._done.items():
            streams.ack(self.pipe, stream, streams.REPLAY, *ids)
        self.pipe.set(_table(self.keys, "state"), msgspec.json.encode(self.state.counters))

    def _change(self, table: str, *fields: str, to: bytes | None) -> None:
        self._changed.setdefault(table, {}).update(dict.fromkeys(fields, to))


class Store:
    """Loads the state and opens transactions on it."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self.client, self.keys = client, keys
        self._epoch = 0

    async def take_over(self) -> int:
        """Become the one replay process that may write; returns this life's number.

        Once in this process's life, and again where the server has lost that: then under a number above its own, which
        no process that it had replaced can have. Otherwise the number is written as it is: a transaction of this
        process that was under way when its connection broke may still arrive, and fails once the key was touched.
        """
        key = _table(self.keys, "epoch")
        async with self.client.pipeline(transaction=True) as pipe:
            await pipe.watch(key)
            epoch = streams.count(await pipe.get(key), key)
            if self._epoch and epoch > self._epoch:
                return self._epoch  # replaced, which the next look finds
            own = epoch if epoch == self._epoch > 0 else max(epoch, self._epoch) + 1
            pipe.multi()
            pipe.set(key, own)
            await pipe.execute()
        self._epoch = own
        return own

    async def load(self, now: float) -> State:
        """The state as the last transaction left it, without what cannot be read; a new one on an empty server.

        Raises UserError where the counters cannot: without them nothing is known of the rest.
        """
        state = State(await self._counters() or Counters(started=now))
        state.tasks = await self._read("tasks", state.damaged)
        state.fresh = await self._read("fresh", state.damaged)
        rows = await self._read("buffer", state.damaged)
        for place, row in enumerate(sorted(rows.values(), key=lambda row: row.sequence)):
            state.buffer.insert(row)
            if place % PAGE == PAGE - 1:
                await asyncio.sleep(0)
        state.batches = {int(step): batch for step, batch in (await self._read("batches", state.damaged)).items()}
        state.retired = await self._read("retired", state.damaged)
        state.evals = await self._read("evals", state.damaged)
        state.kept = await self._read("kept", state.damaged)
        state.payload_bytes = sum(map(_bytes, [*state.fresh.values(), *state.retired.values()]))
        state.payload_bytes += int(state.buffer.bytes[state.buffer.slots()].sum(dtype=np.int64))
        return state

    async def header(self, id: str) -> GroupHeader | None:
        """How the rollouts of a group ended, while its payload is there; None where that cannot be read."""
        saved: Any = await self.client.hget(_table(self.keys, "headers"), id)
        try:
            return messages.decode(saved, GroupHeader) if saved else None
        except Malformed as error:
            log.warning("the header of group %s cannot be shown: %s", id, plain(str(error)))
            return None

    async def make_room(self) -> None:
        """Delete the payloads that only steps below the learner's checkpoint needed, on a server too full to be told.

        Whose payload is gone already is deleted once more in its transaction.
        """
        key = streams.saved_key(self.keys)
        saved = streams.count(await self.client.get(key), key)
        retired = await self._read("retired", [])
        gone = [id for id, group in retired.items() if group.step < saved]
        if gone:
            await self.client.unlink(*[key(id) for id in gone for key in (self.keys.payload, self.keys.reference)])

    @asynccontextmanager
    async def transaction(self, state: State) -> AsyncIterator[Transaction]:
        """Everything in the block or nothing. Raises Superseded, or a RedisError: the state must be loaded again."""
        async with self.client.pipeline(transaction=True) as pipe:
            epoch = _table(self.keys, "epoch")
            await pipe.watch(epoch)
            self._check(await pipe.get(epoch))
            pipe.multi()
            tx = Transaction(state, self.keys, pipe)
            yield tx
            tx.close()
            await pipe.execute()

    async def check_epoch(self) -> None:
        """Raise Superseded when another process has taken over; for one that has nothing to write."""
        self._check(await self.client.get(_table(self.keys, "epoch")))

    def _check(self, epoch: Any) -> None:
        found = streams.count(epoch, _table(self.keys, "epoch"))
        if found < self._epoch:
            raise Emptied("the server has lost the run's state, or its last seconds")
        if found > self._epoch:
            raise Superseded("another replay process has taken over this run: this one leaves.")

    async def _counters(self) -> Counters | None:
        key = _table(self.keys, "state")
        saved: Any = await self.client.get(key)
        try:
            return tables.counters(saved) if saved else None
        except Malformed as error:
            raise UserError(
                f"{key} in Redis cannot be read ({plain(str(error))}): give the server its data back, or delete the "
                "run's keys and start replay again, which then goes on from the learner's step with an empty buffer."
            ) from None

    async def _read(self, table: str, damaged: list[tables.Damaged]) -> dict[str, Any]:
        """In pages, so that a large table does not hold up what else this process does; nobody else writes it.

        damaged: what cannot be read is put there.
        """
        found, cursor = dict[str, Any](), 0
        while True:
            reply: Any = await self.client.hscan(_table(self.keys, table), cursor, count=PAGE)
            cursor, page = reply
            for field, value in page.items():
                try:
                    name, entry = tables.entry(table, field, value)
                except Malformed as error:
                    damaged.append(tables.Damaged(table, field, value, str(error)))
                else:
                    found[name] = entry
            if cursor == 0:
                return found


def _bytes(value: Any) -> int:
    """What a FreshGroup, StoredGroup or Retired takes in Redis; nothing of anything else."""
    return getattr(value, "bytes", 0)


def _table(keys: Keys, name: str) -> str:
    return f"{keys.prefix}replay:{name}"
