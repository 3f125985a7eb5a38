"""The durable log in the run's own words: what was put on streams and taken off, and what replay made durable.

    Added     a message on a stream          Removed   entries acknowledged, which is when they took effect
    Put       a field of a replay table      Dropped   the same, removed
    Counted   replay's counters              Noted     a line of the ledger

Facts of one transaction are in one list: a reader may rely on all of them having happened, or none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from cli.chaos.aof import Command
from shared import messages
from shared.messages import GroupHeader, Malformed, Result, Task, WeightsNotice, Work
from shared.streams import FIELD, Keys

KINDS: dict[str, Any] = {
    "tasks": Task,
    "groups": GroupHeader,
    "work": Work,
    "results": Result,
    "weights": WeightsNotice,
}


@dataclass(frozen=True)
class Added:
    """`message`: a message of `shared.messages`, a mapping on `events` and `dead`; None where it is not readable."""

    stream: str
    id: bytes
    message: Any


@dataclass(frozen=True)
class Removed:
    """Entries that were acknowledged and deleted."""

    stream: str
    ids: tuple[bytes, ...]


@dataclass(frozen=True)
class Put:
    """One field of `replay:<table>`."""

    table: str
    field: str
    value: bytes


@dataclass(frozen=True)
class Dropped:
    """One field of `replay:<table>` is gone."""

    table: str
    field: str


@dataclass(frozen=True)
class Counted:
    """replay:state, as it was written."""

    counters: dict[str, Any]


@dataclass(frozen=True)
class Noted:
    """One line of replay:ledger."""

    record: dict[str, Any]


Fact = Added | Removed | Put | Dropped | Counted | Noted


def facts(transactions: Iterable[list[Command]], run: str) -> Iterator[list[Fact]]:
    """The facts of each transaction, in order; commands that say nothing of the run are left out."""
    prefix = Keys(run).prefix.encode()
    for commands in transactions:
        if found := [fact for command in commands for fact in _facts(command, prefix)]:
            yield found


def _facts(command: Command, prefix: bytes) -> Iterator[Fact]:
    if len(command) < 3 or not command[1].startswith(prefix):
        return
    name, key, words = command[0].upper(), command[1][len(prefix) :].decode(), command[2:]
    table = key.removeprefix("replay:")
    match name:
        case b"XADD" if key in KINDS or key in ("events", "dead"):
            yield _added(key, words)
        case b"XDEL":
            yield Removed(key, tuple(words))
        case b"SET" if key == "replay:state":
            yield Counted(msgspec.json.decode(words[0]))
        case b"RPUSH" if key == "replay:ledger":
            yield from (Noted(msgspec.json.decode(word)) for word in words)
        case b"HSET" | b"HMSET" if key != table:
            pairs = zip(words[::2], words[1::2], strict=True)
            yield from (Put(table, field.decode(), value) for field, value in pairs)
        case b"HDEL" if key != table:
            yield from (Dropped(table, field.decode()) for field in words)


def _added(stream: str, words: list[bytes]) -> Added:
    """words: [MAXLEN [=|~] count] id field value ..."""
    at = next(i for i, word in enumerate(words) if _is_entry_id(word))
    fields = dict(zip(words[at + 1 :: 2], words[at + 2 :: 2], strict=True))
    return Added(stream, words[at], _message(stream, fields))


def _is_entry_id(word: bytes) -> bool:
    first, dash, second = word.partition(b"-")
    return bool(dash) and first.isdigit() and second.isdigit()


def _message(stream: str, fields: dict[bytes, bytes]) -> Any:
    if stream == "dead":
        return {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    try:
        data = fields[FIELD]
        return msgspec.json.decode(data) if stream == "events" else messages.decode(data, KINDS[stream])
    except (KeyError, Malformed, msgspec.MsgspecError):
        return None
