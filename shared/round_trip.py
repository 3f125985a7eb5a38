"""How long Redis takes to answer a service: a slow way there makes everything slow, and nothing fails."""

import time
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

SLOW_S, IN_A_ROW = 0.2, 3


class RoundTrip:
    """`headrace_<service>_redis_round_trip_seconds`: of the last request that was made to measure it."""

    def __init__(self, service: str, registry: CollectorRegistry = REGISTRY) -> None:
        text = "how long Redis took to answer the last request that was made to measure it"
        self._gauge = Gauge(f"headrace_{service}_redis_round_trip_seconds", text, registry=registry)
        self._slow = 0  # in a row

    async def measure(self, client: Any) -> str | None:
        """One request, and what `took` says of it. Raises RedisError."""
        asked = time.monotonic()
        await client.ping()
        return self.took(time.monotonic() - asked)

    def took(self, seconds: float) -> str | None:
        """One more; a sentence where several in a row were slow, once until one is not."""
        self._gauge.set(seconds)
        self._slow = self._slow + 1 if seconds >= SLOW_S else 0
        if self._slow != IN_A_ROW:
            return None
        return (
            f"Redis takes {seconds:.1f} s to answer, {IN_A_ROW} times in a row: the network to it is slow, or one of "
            "the two machines is overloaded."
        )
