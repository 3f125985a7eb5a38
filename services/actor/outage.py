"""Redis may go away, or be full, for a while: calls wait and are made again until it takes them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis

from services.actor import metrics
from shared.outage import Outage

log = logging.getLogger("headrace")
T = TypeVar("T")
_PAUSE_S = 0.3


class Patience:
    """The waiting of one actor: its calls share it, so that an outage is told once and not by each of them."""

    def __init__(self, tell: Callable[[str], Awaitable[None]]) -> None:
        """`tell` hears that Redis is full, in a sentence for people; it may fail."""
        self._tell = tell
        self._waiting, self._outage = 0, Outage(metrics.REDIS_WAIT)

    async def through(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call()`, which must be idempotent, made again while Redis is away or full.

        Raises UserError where it refuses the password.
        """
        waits = False
        try:
            while True:
                try:
                    return await call()
                except (redis.RedisError, OSError) as error:
                    text = self._outage.failed(error)
                    if not waits:
                        waits = True
                        metrics.REDIS_OUTAGES.inc(self._waiting == 0)
                        self._waiting += 1
                    if text:
                        await self._tell_people(text)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._waiting -= waits
            if waits and not self._waiting:
                self._outage.over()

    async def _tell_people(self, text: str) -> None:
        try:
            await self._tell(text)
        except (redis.RedisError, OSError) as silent:
            log.debug("nobody could be told: %s", silent)
