"""What actors and replay last said of themselves, as their heartbeats in Redis have it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

import redis
import redis.asyncio

from shared.streams import Keys
from shared.versions import Version

Beat = dict[str, Any]
REPLAY_LIFE_S = 15  # it reports every 5 s
VERSIONS = ("version", "loading")  # weights in force, and weights that are just being read


async def alive(client: redis.asyncio.Redis, keys: Keys) -> list[Beat]:
    """One record per live actor, by "id". Raises RedisError."""
    return [{"id": name, **beat} for name, beat in (await all_known(client, keys)).items() if beat is not None]


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
    return json.loads(told) if told else None


def versions(beats: Iterable[Beat | None], fields: Sequence[str] = VERSIONS) -> set[Version]:
    """The versions that these heartbeats name in `fields`."""
    named = [beat.get(field) for beat in beats if beat for field in fields]
    return {Version(int(v[0]), int(v[1])) for v in named if v}


def _names(members: Iterable[bytes]) -> list[str]:
    return sorted(member.decode() for member in members)


def _told(names: list[str], values: Iterable[bytes | None]) -> dict[str, Beat | None]:
    return {name: json.loads(value) if value else None for name, value in zip(names, values, strict=True)}
