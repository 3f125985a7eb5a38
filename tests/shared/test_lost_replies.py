"""A connection that is cut after the server has delivered: the entries come again."""

import asyncio
import contextlib

import pytest
import redis

from shared import streams
from shared.redis_client import connect, connect_async
from shared.streams import Inbox, SyncInbox


class CuttingProxy:
    """Passes bytes on to Redis, and cuts the connection instead of passing on a reply that holds `word`, once."""

    def __init__(self, url: str, word: bytes) -> None:
        host, _, self.credentials = url.removeprefix("redis://").partition("@")[2], "", url.partition("@")[0]
        self.port = int(host.partition(":")[2].partition("/")[0])
        self.word, self.cuts = word, 0
        self.connections: list[asyncio.Task] = []

    async def __aenter__(self) -> "CuttingProxy":
        self.server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"{self.credentials}@127.0.0.1:{port}/0"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()
        await asyncio.wait_for(asyncio.gather(*self.connections, return_exceptions=True), 5)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if this := asyncio.current_task():
            self.connections.append(this)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(self._pass(reader, up_writer, False), self._pass(up_reader, writer, True))
        for end in (writer, up_writer):
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if replies and self.cuts == 0 and self.word in data:
                    self.cuts = 1
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_entries_of_a_lost_reply_are_read_again(redis_url):
    async with CuttingProxy(redis_url, b"hello") as proxy:
        client = connect_async(proxy.url)
        inbox = Inbox(client, "s", "g", "me")
        await inbox.create()
        assert await inbox.read(5, block_ms=10) == []
        await streams.add(client, "s", b"hello")
        with pytest.raises(redis.RedisError):
            await inbox.read(5, block_ms=10)
        assert [entry.data for entry in await inbox.read(5, block_ms=10)] == [b"hello"]
        assert proxy.cuts == 1
        await client.aclose()


async def test_the_learners_reader_does_the_same(redis_url):
    async with CuttingProxy(redis_url, b"hello") as proxy:
        client = connect(proxy.url)
        inbox = SyncInbox(client, "s", "g", "me")

        def read() -> list[bytes]:
            return [entry.data for entry in inbox.read(5, block_ms=10)]

        await asyncio.to_thread(inbox.create)
        assert await asyncio.to_thread(read) == []
        await asyncio.to_thread(streams.add, client, "s", b"hello")
        with pytest.raises(redis.RedisError):
            await asyncio.to_thread(read)
        assert await asyncio.to_thread(read) == [b"hello"]
        client.close()
