"""A client that sends no request, or drips one, keeps nobody else out; one that is slow but in time is answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from fastapi import FastAPI, Request
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared import http_server, request_deadline
from shared.cancellation import stop
from shared.request_deadline import RequestDeadline

LIMIT, DEADLINE_S, ANSWER_S = 6, 0.8, 2.0
GET, SLOW = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Opened = Callable[[], Awaitable[Connection]]


class H11(RequestDeadline, H11Protocol):
    """What is used where httptools is not installed."""


class HttpTools(RequestDeadline, HttpToolsProtocol):
    """What is used where it is."""


@pytest.fixture(params=[H11, HttpTools])
async def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Of a server with LIMIT connections and DEADLINE_S for a request, one of whose answers takes ANSWER_S."""
    monkeypatch.setattr(http_server, "HttpProtocol", request.param)
    monkeypatch.setattr(http_server, "CONNECTIONS", LIMIT)
    monkeypatch.setattr(request_deadline, "REQUEST_S", DEADLINE_S)
    app = FastAPI()

    @app.get("/")
    async def health() -> str:
        return "here"

    @app.post("/")
    async def read(request: Request) -> str:
        return (await request.body()).decode()

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(ANSWER_S)
        return "at last"

    sock = http_server.listen("127.0.0.1", 0, "x.port")
    serving = asyncio.create_task(http_server.serve_http(app, sock))
    yield sock.getsockname()[1]
    await stop(serving)


@pytest.fixture
async def opened(port: int) -> AsyncIterator[Opened]:
    """Opens connections, which are closed at the end of the test."""
    writers: list[asyncio.StreamWriter] = []

    async def open_one() -> Connection:
        connection = await asyncio.open_connection("127.0.0.1", port)
        writers.append(connection[1])
        return connection

    yield open_one
    for writer in writers:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_silent_connections_shut_others_out_until_the_deadline_and_no_longer(opened: Opened) -> None:
    silent = [await opened() for _ in range(LIMIT)]
    assert b"503" in await asked(await opened(), GET)
    ends = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in silent)), 5 * DEADLINE_S)
    assert ends == [b""] * LIMIT
    assert b"200 OK" in await asked(await opened(), GET)


async def test_a_request_that_is_dripped_is_cut_its_head_its_body_or_a_second_one(opened: Opened) -> None:
    head, body, second = [await opened() for _ in range(3)]
    assert b"200 OK" in await asked(second, GET)
    drips = dripped(head, GET), dripped(body, POST + b"body", whole=len(POST)), dripped(second, GET)
    for seconds, said in await asyncio.gather(*drips):
        assert said == b"" and seconds > DEADLINE_S - 0.1


async def test_a_slow_answer_and_the_time_between_two_requests_are_not_cut(opened: Opened) -> None:
    slow, idle = [await opened() for _ in range(2)]
    slow[1].write(SLOW[:9])
    assert b"200 OK" in await asked(idle, GET)
    await asyncio.sleep(DEADLINE_S / 2)
    assert b"at last" in await asked(slow, SLOW[9:]), "a head in two pieces, then an answer longer than the deadline"
    assert b"200 OK" in await asked(idle, GET)
    slow[1].write(SLOW + POST)  # the second one's body is not here yet, and nobody reads on before the first's answer
    assert b"at last" in await asked(slow, b"")
    assert b"body" in await asked(slow, b"body")


async def asked(connection: Connection, words: bytes) -> bytes:
    """What comes next after these bytes."""
    reader, writer = connection
    writer.write(words)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2 * ANSWER_S)
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    return head + await reader.readexactly(length)


async def dripped(connection: Connection, words: bytes, whole: int = 0) -> tuple[float, bytes]:
    """(seconds, what was read) until the server closes: the first `whole` bytes at once, the rest never in time."""
    reader, writer = connection
    began = time.monotonic()
    writer.write(words[:whole])
    end = asyncio.create_task(reader.read())
    for byte in words[whole:]:
        writer.write(bytes([byte]))
        await asyncio.wait({end}, timeout=0.35)
        if end.done():
            break
    seconds, said = time.monotonic() - began, b""
    with suppress(ConnectionError):  # a byte was on its way when the server closed
        said = await asyncio.wait_for(end, 1)
    return seconds, said
