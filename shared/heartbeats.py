"""What actors and replay last said of themselves, as their heartbeats in Redis have it.

A heartbeat that is none is as good as none. In one that is read any field may be missing, but those of the classes
below are what they are there.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, cast

import msgspec
import redis
import redis.asyncio

from shared.events import Count, Number
from shared.messages import UNREADABLE
from shared.streams import Keys
from shared.versions import Version

Beat = dict[str, Any]
REPLAY_LIFE_S = 15  # it reports every 5 s
VERSIONS = ("version", "loading")  # weights in force, and weights that are just being read

_Place = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Version = tuple[_Place, _Place] | None


class _OfActor(msgspec.Struct):
    id: str = ""
    state: str = ""
    host: str = ""
    engine: str = ""
    device: str = ""
    version: _Version = None
    loading: _Version = None
    refused: _Version = None
    groups_running: Count = 0
    tokens_per_s: Number | None = None
    swaps: Count = 0
    canary_refused: Count = 0
    memory: Number = 0


class _OfReplay(msgspec.Struct):
    waiting_for: str = ""
    waiting_s: Number = 0.0
    refused: list[str] = []


_decode = msgspec.json.Decoder(Beat).decode


async def alive(client: redis.asyncio.Redis, keys: Keys) -> list[Beat]:
    """One record per live actor, by "id". Raises RedisError."""
    return [{**beat, "id": name} for name, beat in (await all_known(client, keys)).items() if beat is not None]


async def all_known(client: redis.asyncio.Redis, keys: Keys) -> dict[str, Beat | None]:
    """`known`, on an event loop."""
    names = _names(await cast(Any, client.smembers(keys.actors)))
    return _told(names, cast(Any, await client.mget([keys.actor(name) for name in names])) if names else [])


def known(client: redis.Redis, keys: Keys) -> dict[str, Beat | None]:
    """Every actor that has not signed off, by name; None where its heartbeat has stopped. Raises RedisError."""
    names = _names(cast(Any, client.smembers(keys.actors)))
    return _told(names, cast(Any, client.mget([keys.actor(name) for name in names])) if names else [])


async def tell_of_replay(client: redis.asyncio.Redis, keys: Keys, beat: Beat) -> None:
    """Replay's own: what it waits for ("waiting_for", since "waiting_s") and which groups it last refused ("refused").

    Raises RedisError.
    """
    await client.set(keys.replay, json.dumps(beat), ex=REPLAY_LIFE_S)


async def of_replay(client: redis.asyncio.Redis, keys: Keys) -> Beat | None:
    """The same; None where none is alive. Raises RedisError."""
    told = await client.get(keys.replay)
    return _read(told, _OfReplay)


def versions(beats: Iterable[Beat | None], fields: Sequence[str] = VERSIONS) -> set[Version]:
    """The versions that these heartbeats name in `fields`."""
    named = [beat.get(field) for beat in beats if beat for field in fields]
    return {Version(int(v[0]), int(v[1])) for v in named if v}


def _names(members: Iterable[bytes]) -> list[str]:
    """What is no text names no actor."""
    return sorted(name for member in members if "\ufffd" not in (name := member.decode(errors="replace")))


def _told(names: list[str], values: Iterable[bytes | None]) -> dict[str, Beat | None]:
    return {name: _read(value, _OfActor) for name, value in zip(names, values, strict=True)}


def _read(value: Any, kind: type[msgspec.Struct]) -> Beat | None:
    if not value:
        return None
    try:
        beat = _decode(value)
        msgspec.convert(beat, kind)
    except UNREADABLE:
        return None
    return beat
