"""The heartbeats of the actors, for people: read when somebody asks, at most once a second."""

import time
from collections.abc import Callable
from typing import Any

import redis.asyncio

from shared import heartbeats
from shared.streams import Keys

ACTORS_SHOWN = 64
_LOOK_S = 1.0
_SHOWN = (
    "id", "state", "version", "engine", "device", "groups_running", "tokens_per_s", "swaps", "canary_refused", "memory",
)  # fmt: skip


class Actors:
    """Those that have reported within the life of a heartbeat."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._keys, self._clock = client, keys, clock
        self._looked = float("-inf")
        self._alive: list[dict[str, Any]] = []

    async def alive(self) -> list[dict[str, Any]]:
        """One record per live actor, by name. Raises RedisError."""
        if self._clock() - self._looked >= _LOOK_S:
            self._looked = self._clock()
            beats = await heartbeats.alive(self._client, self._keys)
            self._alive = [{key: beat[key] for key in _SHOWN if key in beat} for beat in beats]
        return self._alive[:ACTORS_SHOWN]
