"""Waiting for Redis: one rule for every service of what is waited for, what is not, and what is said meanwhile.

away, starting, read-only; out of memory; unable to add to its file    waited for, without end
a password or a user that it refuses, a key of another type            UserError, whenever it is refused
anything else                                                          raised as it is
"""

import logging

import redis

from shared.errors import UserError
from shared.metrics import RedisWait
from shared.redis_client import refusal, why_waited_for, will_pass
from shared.waiting import LongWait

log = logging.getLogger("headrace")

WHAT_TO_DO = {
    "memory": "Redis is full, and what is done waits to be stored: give it more memory (maxmemory), or lower "
    "replay.max_bytes, replay.capacity or learner.checkpoint_every",
    "disk": "Redis cannot write its append-only file, and what is done waits to be stored: make room on its disk",
    "replica": "Redis has become a read-only replica, and what is done waits to be stored: make it a primary again, or "
    "stop the run and resume it with the new primary in redis.url",
}


class Outage:
    """The waiting of one process, from the first call that fails until `over`, which may come at any time."""

    def __init__(self, gauge: RedisWait, *, any_error: bool = False) -> None:
        """any_error: every error of Redis will pass, since what it leaves is loaded again."""
        self._gauge, self._any_error = gauge, any_error
        self._wait: LongWait | None = None

    @property
    def seconds(self) -> float:
        """Since it began; 0 where there is none."""
        return self._wait.seconds if self._wait else 0.0

    def failed(self, error: Exception, what: str = "") -> str | None:
        """A call failed and may be made again. Logs it, at once and then ever less often.

        what: the call was to do. Returns a sentence for people each time a server that refuses writes is logged.
        Raises what is not waited for: the error itself, or UserError where Redis refuses its user.
        """
        raise_if_refused(error)
        if not (self._any_error and isinstance(error, redis.RedisError)) and not will_pass(error):
            raise error
        self._wait = self._wait or LongWait(first_s=0.0)
        self._gauge.goes_on(error, self.seconds)
        if not self._wait.due():
            return None
        text = WHAT_TO_DO.get(why_waited_for(error))
        log.warning("waiting for Redis%s since %.0f s: %s", what and f" to {what}", self.seconds, text or error)
        return text and f"{text}."

    def over(self) -> None:
        """A call was answered."""
        if self._wait:
            log.warning("Redis is back after %.1f s", self.seconds)
            self._gauge.over()
            self._wait = None


def raise_if_refused(error: BaseException) -> None:
    """Raise UserError for a password or a user that the server refuses: to wait would not help."""
    if sentence := refusal(error):
        raise UserError(sentence) from None
