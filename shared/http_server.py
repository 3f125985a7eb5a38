"""An HTTP server inside a service's event loop: the socket is bound first, and signals stay the service's own."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from shared.errors import UserError
from shared.request_deadline import HttpProtocol

CONNECTIONS = 512  # open at once; requests on more are answered with status 503


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; port 0 takes any free one. UserError names `setting` where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise UserError(f"{host}:{port} cannot be opened ({reason}): free it, or set {setting}.") from None


class HttpServer(uvicorn.Server):
    """uvicorn that leaves SIGINT and SIGTERM to whoever runs the loop, and gives a request a time to arrive in."""

    def __init__(self, config: uvicorn.Config) -> None:
        config.http = HttpProtocol
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve_http(app: Any, sock: socket.socket) -> None:
    """Answer requests on `sock` until cancelled; closes it."""
    with sock:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", limit_concurrency=CONNECTIONS
        )
        server = HttpServer(config)
        try:
            await server.serve(sockets=[sock])
        finally:
            for listener in getattr(server, "servers", []):  # there are none before the start
                listener.close()  # the loop lets go of the socket before its number is given to another
