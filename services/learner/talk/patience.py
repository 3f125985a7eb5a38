"""Waiting until a call succeeds: for Redis, or for room on the disk."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from services.learner import waits
from services.learner.stop import Stop

RETRY_S = 0.5

T = TypeVar("T")


class Wait(Protocol):
    """What for, and what is said of it."""

    def failed(self, error: Exception, what: str) -> object:
        """The call, which was to do `what`, failed. Raises what is not waited for."""
        ...

    def over(self) -> None:
        """It succeeded."""
        ...


def patiently(stop: Stop, what: str, call: Callable[[], T], wait: Wait = waits.REDIS) -> T:
    """The result of `call`, which must bear being repeated. Raises Stopped when a stop is asked for meanwhile."""
    while True:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001, the wait raises what is not waited for
            wait.failed(error, what)
            stop.wait(RETRY_S)
        else:
            wait.over()
            return result
