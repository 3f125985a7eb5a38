"""Prometheus metrics of a service on a port of its own, and the event loop's lag.

Names are `headrace_<service>_<what>_<unit>`; labels never hold prompt text or ids.
"""

import asyncio
import functools
import time

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, start_http_server

from shared.errors import UserError


def serve_metrics(port: int, host: str) -> int:
    """Serve /metrics from a daemon thread; 0 takes any free port. Returns the port."""
    try:
        server, _ = start_http_server(port, addr=host)
    except OSError as error:
        raise UserError(
            f"port {port} for metrics cannot be opened ({error.strerror}): choose another, or 0 for any."
        ) from None
    return server.server_port


async def watch_loop_lag(service: str, registry: CollectorRegistry = REGISTRY, every_s: float = 0.5) -> None:
    """Export how late the event loop runs its timers: a blocked loop shows here before it hangs anything."""
    gauge = _lag_gauge(service, registry)
    while True:
        due = time.monotonic() + every_s
        await asyncio.sleep(every_s)
        gauge.set(max(0.0, time.monotonic() - due))


@functools.cache  # a process may serve more than once, as tests do
def _lag_gauge(service: str, registry: CollectorRegistry) -> Gauge:
    name = f"headrace_{service}_event_loop_lag_seconds"
    return Gauge(name, "how late the event loop runs a timer", registry=registry)
