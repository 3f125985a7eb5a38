"""A small server for /metrics and /health in threads of its own: connections, threads and memory are bounded.

Where more than CONNECTIONS are open, the one that has been open longest is closed: a scrape takes milliseconds, so
whoever holds connections without asking, or asks slowly, keeps nobody else out.
"""

import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app

CONNECTIONS = 32  # open at once, each with a thread
IDLE_S = 10.0  # that a connection may say nothing


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers from a thread that `start` begins and that ends with the process. Raises OSError."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry = REGISTRY,
        waiting_for: Callable[[], str] = lambda: "",
    ) -> None:
        """`waiting_for`: what /health says, empty where it works."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, None] = {}  # oldest first
        self._changing = threading.Lock()
        super().__init__((host, port), _Handler)
        self.set_app(_app(make_wsgi_app(registry), waiting_for))

    def start(self) -> int:
        """Returns the port."""
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()
        return self.server_port

    def stop(self) -> None:
        """Give the port up."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, and close the oldest where they have become too many."""
        with self._changing:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                _cut(oldest)  # its thread reads an end and leaves
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Its thread is done with it."""
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut, or said nothing, is no error of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _app(metrics: Callable[..., Any], waiting_for: Callable[[], str]) -> Callable[..., Any]:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] != "/health":
            return metrics(environ, start_response)
        body = json.dumps({"waiting_for": waiting_for() or None}).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # the other side has closed it
        connection.shutdown(socket.SHUT_RDWR)
