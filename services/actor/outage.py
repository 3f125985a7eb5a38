"""Redis may go away for a while: calls wait for it and are made again, up to a limit."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis
from redis.exceptions import ReadOnlyError

from services.actor import metrics
from shared.errors import UserError

log = logging.getLogger("headrace")
T = TypeVar("T")
_PAUSE_S = 0.3

# BusyLoadingError is a ConnectionError: a server that reads its file in counts as away.
AWAY = (redis.ConnectionError, redis.TimeoutError, ReadOnlyError, OSError)


async def through_outage(call: Callable[[], Awaitable[T]], wait_s: float) -> T:
    """The result of `call()`, which must be idempotent, made again while Redis is away.

    Raises UserError when it stays away longer than `wait_s`.
    """
    began = None
    while True:
        try:
            result = await call()
        except redis.AuthenticationError:
            raise UserError("Redis refuses the password: put the right one into redis.url.") from None
        except AWAY as error:
            if began is None:
                began = time.monotonic()
                metrics.REDIS_WAITS.inc()
                log.warning("Redis is away (%s): waiting for it", error)
            if time.monotonic() - began > wait_s:
                raise UserError(f"Redis has been away for {wait_s:g} s ({error}): start it again.") from None
            await asyncio.sleep(_PAUSE_S)
        else:
            if began is not None:
                log.warning("Redis is back after %.1f s", time.monotonic() - began)
            return result
