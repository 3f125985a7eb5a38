"""Serves until a signal, or until a search that hangs will not end any more."""

import logging
import os
import socket
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
from services.env_search.stop import run
from shared.http_server import HttpServer

log = logging.getLogger("headrace")

SHUTDOWN_S = 5
STUCK_S = 60.0  # a search that takes so long ends the process, as an engine that is stuck ends an actor
CONNECTIONS = 1024  # open at once; requests on more are answered with status 503
_LOGGING: dict[str, Any] = {"log_config": None, "log_level": "warning", "access_log": False}  # lines as ours


def serve(retriever: Retriever, limits: Limits, sock: socket.socket) -> None:
    """Answer requests on `sock` until SIGINT or SIGTERM; requests under way get SHUTDOWN_S to end.

    A second later the process is gone, whatever its threads do; status 1 where a search is stuck.
    """
    config = uvicorn.Config(
        create_app(retriever, limits),
        **_LOGGING,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    run(_Server(config, retriever), sock)


def stand_by(sock: socket.socket, why: str) -> None:
    """Answer /health and /metrics alone until SIGINT or SIGTERM, for a run that searches nothing here."""
    app = FastAPI(title="Headrace env_search")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"ready": True, "detail": f"search.corpus is empty and {why}: nothing is searched here."}

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    host, port = sock.getsockname()[:2]
    log.info("http://%s:%d/health alone: search.corpus is empty and %s", host, port, why)
    run(HttpServer(uvicorn.Config(app, **_LOGGING)), sock)


class _Server(HttpServer):
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
            log.error("a search has not ended for %g s, so this process ends: start it again", STUCK_S)
            os._exit(1)
        return await super().on_tick(counter)


def announce(index: OpenIndex, sock: socket.socket) -> None:
    """Say where the service is and what it searches."""
    host, port = sock.getsockname()[:2]
    log.info(
        "http://%s:%d/retrieve, %s, %d documents of %s, index %s",
        *(host, port, index.manifest.backend, len(index.corpus)),
        *(Path(index.corpus.path).name, index.manifest.fingerprint),
    )
