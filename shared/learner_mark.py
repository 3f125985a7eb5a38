"""A learner that takes no lease on a GPU says all the same that it has chosen: actors elsewhere wait for that word.

It may be alone with the only GPU of its machine, or started by torchrun, while actors on a machine with several GPUs
claim theirs after it. The mark is the one that a lease of the learner sets. Losing it costs nothing, so unlike a lease
it ends no process.
"""

import logging
import threading
from types import TracebackType

import redis

from shared.config import Config
from shared.gpu_lease import LEASE_S, LEAVE_S, RELEASE, RENEW, RENEWALS, mark_of, owner_name
from shared.redis_client import connect

log = logging.getLogger("headrace")


class LearnerMark:
    """There while it is entered. Another learner process of the run that has it keeps it."""

    def __init__(self, config: Config, *, lease_s: float = LEASE_S) -> None:
        self._key, self._owner, self._lease_s = mark_of(config.run.name), owner_name("learner"), lease_s
        self._client = connect(config.redis.url, answer_s=lease_s / RENEWALS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_over, name="learner-mark", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(LEAVE_S)
        self._script(RELEASE)
        self._client.close()

    def _renew_until_over(self) -> None:
        while not self._over.is_set():
            self._script(RENEW)
            self._over.wait(self._lease_s / RENEWALS)

    def _script(self, script: str) -> None:
        try:
            self._client.eval(script, 1, self._key, self._owner, int(self._lease_s * 1000))
        except (redis.RedisError, OSError) as error:
            log.debug("the learner's mark was not set or taken back: %s", error)
