"""Actors that stopped reporting without signing off: hung, stopped, cut off or killed. Each is told once, by its name.

A heartbeat expires by itself, and another actor takes the entries over that are not renewed any more; what nobody
would see is that one has gone, and which.
"""

import time
from collections.abc import Callable
from typing import Any, cast

import redis.asyncio

from shared import heartbeats
from shared.streams import Keys

FORGOTTEN_S = 300.0  # one that reports again later is a new one


class Silent:
    """Looks now and then."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._keys, self._clock = client, keys, clock
        self._running: dict[str, int] = {}  # groups, when it last reported
        self._since: dict[str, float] = {}  # when it was first missed
        self.alive = 0

    @property
    def silent(self) -> int:
        """How many are missed."""
        return len(self._since)

    async def look(self) -> list[str]:
        """Sentences about those that fell silent, or reported again, since the last look. Raises RedisError."""
        known = await heartbeats.all_known(self._client, self._keys)
        self.alive = sum(beat is not None for beat in known.values())
        said = []
        for name, beat in known.items():
            if beat is not None:
                self._running[name] = beat.get("groups_running", 0)
                if name in self._since:
                    said.append(f"actor {name} reports again after {self._clock() - self._since.pop(name):.0f} s.")
            elif name not in self._since:
                self._since[name] = self._clock()
                groups = self._running.get(name, 0)
                said.append(
                    f"actor {name} has stopped reporting (hung, stopped, cut off or killed): "
                    f"another actor takes its {groups} groups over."
                )
        gone = [name for name, since in self._since.items() if self._clock() - since > FORGOTTEN_S]
        if gone:
            await cast(Any, self._client.srem(self._keys.actors, *gone))
        for name in {*gone, *(self._running.keys() | self._since.keys()) - known.keys()}:
            self._running.pop(name, None)
            self._since.pop(name, None)
        return said
