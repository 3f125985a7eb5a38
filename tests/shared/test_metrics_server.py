"""What serves metrics is bounded: whoever holds connections keeps neither a scrape out nor threads and memory."""

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest
from prometheus_client import CollectorRegistry, Gauge

from shared import metrics_server
from shared.metrics_server import CONNECTIONS, MetricsServer

HELD = 200


@pytest.fixture
def port() -> Iterator[int]:
    registry = CollectorRegistry()
    Gauge("headrace_test_answer_ratio", "a series", registry=registry).set(0.5)
    server = MetricsServer("127.0.0.1", 0, registry)
    yield server.start()
    server.stop()


def scrape(port: int) -> None:
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5, trust_env=False)
    assert answer.status_code == 200 and "headrace_test_answer_ratio 0.5" in answer.text


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def until(threads_left: int) -> None:
    deadline = time.monotonic() + 5
    while threads() > threads_left:
        assert time.monotonic() < deadline, f"{threads()} threads are left"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nhost: x\r\n"], ids=["nothing", "half a request"])
def test_many_idle_connections_keep_nobody_out(port: int, said: bytes):
    scrape(port)
    before = psutil.Process().memory_info().rss
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(HELD)]
    try:
        for one in held:
            one.sendall(said)
        for _ in range(3):
            scrape(port)
        until(CONNECTIONS)
        assert psutil.Process().memory_info().rss - before < 32 * 2**20
    finally:
        for one in held:
            one.close()
    until(0)
    scrape(port)


def test_health_says_what_it_waits_for_and_a_port_that_is_given_up_is_free():
    waits = [""]
    server = MetricsServer("127.0.0.1", 0, CollectorRegistry(), lambda: waits[0])
    url = f"http://127.0.0.1:{server.start()}/health"
    assert httpx.get(url, trust_env=False).json() == {"waiting_for": None}
    waits[0] = "a GPU: none is free"
    assert httpx.get(url, trust_env=False).json() == {"waiting_for": "a GPU: none is free"}
    server.stop()
    again = MetricsServer("127.0.0.1", server.server_port)
    again.start()
    again.stop()


def test_a_silent_connection_is_closed_after_a_while(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as silent:
        assert silent.recv(1) == b""
    until(0)
