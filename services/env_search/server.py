"""Serves until a signal, or until a search that hangs will not end any more."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.env_search.app import Retriever, create_app
from services.env_search.index import OpenIndex
from services.env_search.requests import Limits

SHUTDOWN_S = 5
STUCK_S = 60.0  # a search that takes so long ends the process, as an engine that is stuck ends an actor
CONNECTIONS = 1024  # open at once; requests on more are answered with status 503


def serve(retriever: Retriever, limits: Limits, sock: socket.socket) -> None:
    """Answer requests on `sock` until SIGINT or SIGTERM; requests under way get SHUTDOWN_S to end.

    A second later the process is gone, whatever its threads do; status 1 where a search is stuck.
    """
    config = uvicorn.Config(
        create_app(retriever, limits),
        log_level="warning",
        access_log=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    _end_normally()
    _Server(config, retriever).run(sockets=[sock])


def stand_by(sock: socket.socket) -> None:
    """Answer /health and /metrics alone until SIGINT or SIGTERM, for a run that searches nothing."""
    app = FastAPI(title="Headrace env_search")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"ready": True, "detail": 'env.kind is "single": this run searches nothing.'}

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    host, port = sock.getsockname()[:2]
    print(f'env_search: http://{host}:{port}/health alone, since env.kind is "single"', flush=True)
    _end_normally()
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[sock])


def _end_normally() -> None:
    """uvicorn raises the signal again once it has shut down; that is a normal end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))


class _Server(uvicorn.Server):
    """Python waits for every thread of a pool before it ends; one that hangs in a search or a read never does."""

    def __init__(self, config: uvicorn.Config, retriever: Retriever) -> None:
        super().__init__(config)
        self._retriever = retriever

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        end = threading.Timer(SHUTDOWN_S + 1, os._exit, (0,))
        end.daemon = True
        end.start()

    async def on_tick(self, counter: int) -> bool:
        if self._retriever.batcher.searching_s >= STUCK_S:
            sentence = f"a search has not ended for {STUCK_S:g} s, so this process ends: start it again"
            print(f"env_search: {sentence}", file=sys.stderr, flush=True)
            os._exit(1)
        return await super().on_tick(counter)


def announce(index: OpenIndex, sock: socket.socket) -> None:
    """Say on the standard output where the service is and what it searches."""
    host, port = sock.getsockname()[:2]
    print(
        f"env_search: http://{host}:{port}/retrieve, {index.manifest.backend}, {len(index.corpus)} documents of "
        f"{Path(index.corpus.path).name}, index {index.manifest.fingerprint}",
        flush=True,
    )
