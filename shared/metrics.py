"""Prometheus metrics of a service on a port of its own, and the event loop's lag.

Names are `headrace_<service>_<what>_<unit>`; labels never hold prompt text or ids.
"""

import asyncio
import functools
import time
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from shared.errors import UserError
from shared.metrics_server import MetricsServer
from shared.redis_client import SPOKEN, why_waited_for


def serve_metrics(port: int, host: str) -> int:
    """Serve /metrics from a daemon thread; 0 takes any free port. Returns the port."""
    return open_metrics(port, host).server_port


def open_metrics(port: int, host: str, waiting_for: Callable[[], str] = lambda: "") -> MetricsServer:
    """The same, for who may give the port up, or waits for something before it works and says so at /health."""
    try:
        server = MetricsServer(host, port, waiting_for=waiting_for)
        server.start()
        return server
    except OSError as error:
        raise UserError(
            f"port {port} for metrics cannot be opened ({error.strerror}): choose another, or 0 for any."
        ) from None


def export_gpu_wait(service: str, seconds: Callable[[], float]) -> None:
    """`headrace_<service>_gpu_wait_seconds`: how long this process has waited for a GPU by now; 0: it does not."""
    _gpu_gauge(service).set_function(seconds)


class RedisWait:
    """`headrace_<service>_redis_wait_seconds`: how long calls have waited for Redis by now, by why; 0: they do not."""

    def __init__(self, service: str, registry: CollectorRegistry = REGISTRY) -> None:
        text = "how long calls have been waiting for Redis: it is away, full, or cannot write its append-only file"
        self._gauge = Gauge(f"headrace_{service}_redis_wait_seconds", text, ["why"], registry=registry)
        self.over()

    def goes_on(self, error: BaseException, seconds: float) -> None:
        """A call failed again, so many seconds after the first."""
        for why in SPOKEN:
            self._gauge.labels(why).set(seconds if why == why_waited_for(error) else 0.0)

    def over(self) -> None:
        """A call was answered."""
        for why in SPOKEN:
            self._gauge.labels(why).set(0.0)


async def watch_loop_lag(service: str, registry: CollectorRegistry = REGISTRY, every_s: float = 0.5) -> None:
    """Export how late the event loop runs its timers: a blocked loop shows here before it hangs anything."""
    gauge = _lag_gauge(service, registry)
    while True:
        due = time.monotonic() + every_s
        await asyncio.sleep(every_s)
        gauge.set(max(0.0, time.monotonic() - due))


@functools.cache  # a process may serve more than once, as tests do
def _gpu_gauge(service: str) -> Gauge:
    return Gauge(f"headrace_{service}_gpu_wait_seconds", "how long this process has been waiting for a GPU")


@functools.cache
def _lag_gauge(service: str, registry: CollectorRegistry) -> Gauge:
    name = f"headrace_{service}_event_loop_lag_seconds"
    return Gauge(name, "how late the event loop runs a timer", registry=registry)
