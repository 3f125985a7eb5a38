"""Binds the port, opens the index and serves until a signal."""

import signal
import socket
import sys
from pathlib import Path

import uvicorn

from services.env_search.app import Retriever, create_app
from services.env_search.index import OpenIndex
from services.env_search.requests import Limits

SHUTDOWN_S = 5
CONNECTIONS = 1024  # open at once; requests on more are answered with status 503


def serve(retriever: Retriever, limits: Limits, sock: socket.socket) -> None:
    """Answer requests on `sock` until SIGINT or SIGTERM; requests under way get SHUTDOWN_S to end."""
    config = uvicorn.Config(
        create_app(retriever, limits),
        log_level="warning",
        access_log=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    # uvicorn raises the signal again once it has shut down; that is a normal end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    uvicorn.Server(config).run(sockets=[sock])


def announce(index: OpenIndex, sock: socket.socket) -> None:
    """Say on the standard output where the service is and what it searches."""
    host, port = sock.getsockname()[:2]
    print(
        f"env_search: http://{host}:{port}/retrieve, {index.manifest.backend}, {len(index.corpus)} documents of "
        f"{Path(index.corpus.path).name}, index {index.manifest.fingerprint}",
        flush=True,
    )
