"""Redis may go away, or be full, for a while: calls wait and are made again until it takes them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis

from services.actor import metrics
from shared.errors import UserError
from shared.redis_client import AWAY, is_full, is_short_of_disk
from shared.waiting import LongWait

log = logging.getLogger("headrace")
T = TypeVar("T")
_PAUSE_S = 0.3

FULL = (
    "Redis is full, and what is done waits to be stored: give it more memory (maxmemory), or lower replay.max_bytes, "
    "replay.capacity or learner.checkpoint_every"
)
DISK_FULL = "Redis cannot write its append-only file, and what is done waits to be stored: make room on its disk"


class Patience:
    """The waiting of one actor: its calls share it, so that an outage is told once and not by each of them."""

    def __init__(self, tell: Callable[[str], Awaitable[None]]) -> None:
        """`tell` hears that Redis is full, in a sentence for people; it may fail."""
        self._tell = tell
        self._waiting, self._wait = 0, LongWait()

    async def through(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call()`, which must be idempotent, made again while Redis is away or full.

        Raises UserError where it refuses the password.
        """
        waits = False
        try:
            while True:
                try:
                    result = await call()
                except redis.AuthenticationError:
                    raise UserError("Redis refuses the password: put the right one into redis.url.") from None
                except (redis.RedisError, OSError) as error:
                    if not is_full(error) and not isinstance(error, AWAY):
                        raise
                    if not waits:
                        waits = True
                        self._begin()
                    await self._say(error)
                    await asyncio.sleep(_PAUSE_S)
                else:
                    if waits and self._waiting == 1:
                        log.warning("Redis is back after %.1f s", self._wait.seconds)
                    return result
        finally:
            self._waiting -= waits
            if waits and not self._waiting:
                metrics.REDIS_WAIT.over()

    def _begin(self) -> None:
        if not self._waiting:
            self._wait = LongWait(first_s=0.0)
            metrics.REDIS_OUTAGES.inc()
        self._waiting += 1

    async def _say(self, error: Exception) -> None:
        metrics.REDIS_WAIT.goes_on(error, self._wait.seconds)
        if not self._wait.due():
            return
        if not is_full(error):
            log.warning("waiting for Redis since %.0f s: %s", self._wait.seconds, error)
            return
        text = DISK_FULL if is_short_of_disk(error) else FULL
        log.warning("%s (since %.0f s)", text, self._wait.seconds)
        try:
            await self._tell(f"{text}.")
        except (redis.RedisError, OSError) as silent:
            log.debug("nobody could be told: %s", silent)
