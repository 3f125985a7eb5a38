"""One learner and one replay a run: while one lives a second leaves with a sentence; of a dead one it takes the place.

    newcomer:  nobody of this role is connected          -> begins
               one is, and speaks after the first look   -> UserError: it lives
               one is, and is silent for SILENT_S        -> begins: it hangs, or its machine is gone

Who is at work has a connection of its own, with a name, on which it speaks every SAY_S. The server sees a connection
end with its process, so one that was killed is replaced at once, and nothing is left behind that would have to expire.
Two that begin in the same moment are told apart as before: by replay's epoch and the learner's lineage.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import redis
from redis.exceptions import NoPermissionError

from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.errors import UserError
from shared.redis_client import AWAY, connect, refusal

log = logging.getLogger("headrace")

Role = Literal["learner", "replay"]

SAY_S = LOOK_S = 1.0
SILENT_S = 10.0
ANSWER_S = 5.0
LEAVE_S = 1.0
_EXACT_S = 2.0  # the server counts whole seconds, and what was sent before the first look may arrive behind it


class OnlyOne:
    """At work from the moment `try_begin` was true until `leave`, or the end of the process."""

    def __init__(self, config: Config, role: Role, *, silent_s: float = SILENT_S) -> None:
        self._run, self._role, self._silent_s = config.run.name, role, silent_s
        self._prefix = _prefix(config.run.name, role)
        self._name = f"{self._prefix}{socket.gethostname()}-{os.getpid()}"
        self._client = connect(config.redis.url, ANSWER_S)
        self._looked: float | None = None  # when the first look had its answer
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def try_begin(self) -> bool:
        """False where it is not known yet whether the other one lives, and may be asked again. UserError: it does."""
        asked = time.monotonic()
        try:
            others = self._others()
        except NoPermissionError as error:
            log.warning("whether another %s is at work is not known: %s", self._role, error)
            others = []
        except redis.RedisError as error:
            if sentence := refusal(error):
                raise UserError(sentence) from None
            if not isinstance(error, AWAY):
                raise
            return False
        self._looked = self._looked or time.monotonic()
        for other in others:
            idle = float(other["idle"])
            if idle + _EXACT_S < asked - self._looked:
                who = other["name"].removeprefix(self._prefix)
                raise UserError(
                    f"another {self._role} of run '{self._run}' is at work ({who}): stop that one first, or give this "
                    "run another run.name."
                )
            if idle < self._silent_s:
                return False
        self._thread = threading.Thread(target=self._say_until_over, name="only-one", daemon=True)
        self._thread.start()
        return True

    def leave(self) -> None:
        """The place is free."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(LEAVE_S)
        self._client.close()

    def _others(self) -> list[dict[str, str]]:
        connected: Any = self._client.client_list()
        return _of(connected, self._prefix, self._client.get_connection_kwargs())

    def _say_until_over(self) -> None:
        while not self._over.is_set():
            try:
                self._client.client_setname(self._name)  # each time: the connection may be a new one
            except (redis.RedisError, OSError) as error:
                log.debug("that this %s is at work was not said: %s", self._role, error)
            self._over.wait(SAY_S)


def idle_s(connected: Iterable[dict[str, str]], run: str, role: Role, options: Mapping[str, Any]) -> float | None:
    """How long ago the one at work spoke; None: there is none. `connected`: the server's list, got over `options`."""
    return min((float(c["idle"]) for c in _of(connected, _prefix(run, role), options)), default=None)


def _prefix(run: str, role: Role) -> str:
    return f"headrace:{run}:{role}:"


def _of(connected: Iterable[dict[str, str]], prefix: str, options: Mapping[str, Any]) -> list[dict[str, str]]:
    database = str(options.get("db") or 0)
    return [c for c in connected if c["name"].startswith(prefix) and c["db"] == database]


async def until_begun(only: OnlyOne) -> None:
    """Wait for it on an event loop."""
    while True:
        raise_if_cancelled()
        if await asyncio.to_thread(only.try_begin):
            return
        await asyncio.sleep(LOOK_S)


def wait_until_begun(only: OnlyOne, wait: Callable[[float], None]) -> None:
    """Wait for it in a plain process; `wait` sleeps, and raises when the process is told to stop."""
    while not only.try_begin():
        wait(LOOK_S)
