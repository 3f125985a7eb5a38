"""An actor's end of Redis: its name, its keys, and calls that wait through an outage."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from services.actor.heartbeat import actor_name
from services.actor.outage import Patience
from shared import events
from shared.config import Config
from shared.redis_client import connect_async
from shared.streams import Keys

log = logging.getLogger("headrace")
T = TypeVar("T")


class Wire:
    """Shared by the loops of one actor."""

    def __init__(self, config: Config) -> None:
        self.name = actor_name()
        self.keys = Keys(config.run.name)
        self.client = connect_async(config.redis.url)
        self._patience = Patience(self._warn_at_once)

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """`await call()`, again and again while Redis is away or full; it must be idempotent."""
        return await self._patience.through(call)

    async def emit(self, kind: str, **fields: Any) -> None:
        """An event for people."""
        await self.call(lambda: events.emit(self.client, self.keys, kind, **fields))

    async def warn(self, text: str) -> None:
        """A warning, in the log and for people."""
        log.warning("%s", text)
        await self.emit("warning", actor=self.name, text=text)

    async def _warn_at_once(self, text: str) -> None:
        await events.emit(self.client, self.keys, "warning", actor=self.name, text=text)
