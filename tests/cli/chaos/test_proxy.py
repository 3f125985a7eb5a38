"""A link passes bytes on, breaks when it is cut, and waits when it is slow."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cli.chaos.proxy import Link

CONNECTIONS = 5


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[int]:
    """The port of a server that sends back what it gets."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1024):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes) -> bytes:
    writer.write(words)
    async with asyncio.timeout(10):
        return await reader.read(1024)


async def test_a_link_passes_on_is_cut_refuses_and_is_mended(echo: int) -> None:
    link = Link(echo)
    port = await link.start()
    open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    for reader, writer in open_ones:
        assert await say(reader, writer, b"x" * 1000) == b"x" * 1000
    link.cut()
    for reader, writer in open_ones:
        with pytest.raises(ConnectionError):
            assert await say(reader, writer, b"y") == b""
            raise ConnectionError
        writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(ConnectionError):
        assert await say(reader, writer, b"z") == b""
        raise ConnectionError
    writer.close()
    link.mend()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await say(reader, writer, b"again") == b"again"
    writer.close()
    await link.close()


async def test_a_slow_link_delays_both_ways(echo: int) -> None:
    link = Link(echo)
    port = await link.start()
    link.delay_s = 0.2
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    assert await say(reader, writer, b"slow") == b"slow"
    assert time.monotonic() - began >= 0.4
    writer.close()
    await link.close()


async def test_a_link_to_a_server_that_is_down_breaks_at_once(echo: int) -> None:
    link = Link(echo)
    gone = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    nobody = Link(gone.sockets[0].getsockname()[1])
    gone.close()
    await gone.wait_closed()
    reader, writer = await asyncio.open_connection("127.0.0.1", await nobody.start())
    with pytest.raises(ConnectionError):
        assert await say(reader, writer, b"hello") == b""
        raise ConnectionError
    writer.close()
    await nobody.close()
    await link.close()
