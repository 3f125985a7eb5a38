"""What the learner finds out about Redis and replay now and then, between two entries of its work."""

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import Gauge
from redis.exceptions import NoPermissionError

from shared.heard import Heard
from shared.only_one import idle_s
from shared.round_trip import RoundTrip

LOOK_S = 5.0
SILENT = Gauge("headrace_learner_replay_silent_seconds", "how long replay has said nothing; 0: it speaks")
ROUND_TRIP = RoundTrip("learner")


class Beside:
    """Looks at most every LOOK_S."""

    def __init__(self, client: Any, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._run, self._clock = client, run, clock
        self._replay = Heard("replay", clock)
        self._next = 0.0

    def look(self) -> list[str]:
        """Sentences that are due. Raises RedisError."""
        asked = self._clock()
        if asked < self._next:
            return []
        self._client.ping()
        answered = self._clock()
        self._next = answered + LOOK_S
        found = [ROUND_TRIP.took(answered - asked), self._look_for_replay()]
        SILENT.set(self._replay.silent_s)
        return [text for text in found if text]

    def _look_for_replay(self) -> str | None:
        try:
            connected = self._client.client_list()
        except NoPermissionError:
            return None
        return self._replay.take(idle_s(connected, self._run, "replay", self._client.get_connection_kwargs()))
