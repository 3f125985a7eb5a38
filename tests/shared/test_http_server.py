"""An HTTP server of ours takes a bounded number of connections; what comes beyond is told so."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from shared import http_server
from shared.cancellation import stop

LIMIT = 4


async def test_connections_beyond_the_limit_are_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS", LIMIT)
    app, held, began = FastAPI(), asyncio.Event(), []

    @app.get("/held")
    async def answer() -> str:
        began.append(1)
        await held.wait()
        return "at last"

    @app.get("/")
    async def here() -> str:
        return "here"

    sock = http_server.listen("127.0.0.1", 0, "x.port")
    serving = asyncio.create_task(http_server.serve_http(app, sock))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", limits=limits, timeout=10, trust_env=False
    ) as client:
        assert (await client.get("/")).status_code == 200
        waiting = [asyncio.create_task(client.get("/held")) for _ in range(LIMIT - 1)]
        async with asyncio.timeout(10):
            while len(began) < LIMIT - 1:
                await asyncio.sleep(0.02)
        assert (await client.get("/")).status_code == 503
        held.set()
        assert [(await answer).status_code for answer in waiting] == [200] * (LIMIT - 1)
        async with asyncio.timeout(10):
            while (await client.get("/")).status_code != 200:  # the others' connections are being closed
                await asyncio.sleep(0.02)
    await stop(serving)
