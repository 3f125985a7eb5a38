"""Waiting for Redis: a call is made again until the server takes it, and the log says what is waited for."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import redis

from services.learner import waits
from services.learner.stop import Stop
from shared.redis_client import AWAY, is_full

log = logging.getLogger("headrace")

LOG_EVERY_S = 10.0
RETRY_S = 0.5

T = TypeVar("T")


def patiently(stop: Stop, what: str, call: Callable[[], T]) -> T:
    """The result of `call`, which must bear being repeated. Raises Stopped when a stop is asked for meanwhile."""
    since = time.monotonic()
    next_line = since
    while True:
        try:
            result = call()
        except (redis.RedisError, OSError) as error:
            if not isinstance(error, AWAY) and not is_full(error):
                raise
            now = time.monotonic()
            waits.REDIS.goes_on(error, now - since)
            if now >= next_line:
                log.warning("waiting for Redis to %s since %.0f s: %s", what, now - since, error)
                next_line = now + LOG_EVERY_S
            stop.wait(RETRY_S)
        else:
            if next_line > since:
                waits.REDIS.over()
            return result
