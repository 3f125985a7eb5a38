"""A connection between two parts of a run that can be cut and slowed: a TCP proxy on the loopback.

service --> Link (a port of its own) --> Redis or env_search
"""

import asyncio
from contextlib import suppress

CHUNK = 2**16


class Link:
    """One service's way to one server. `delay_s`: how long each chunk waits, in both directions."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        """Where the server listens."""
        self._host, self._target = host, port
        self.delay_s = 0.0
        self._is_cut = False
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        return self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection, and each new one."""
        self._is_cut = True
        for connection in self._open:
            connection.cancel()

    def mend(self) -> None:
        """Let new connections through, undelayed."""
        self._is_cut, self.delay_s = False, 0.0

    async def close(self) -> None:
        """Break everything and listen no more."""
        self.cut()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._open.add(connection)
        ends = [writer]
        try:
            if self._is_cut:
                return
            there, back = await asyncio.open_connection(self._host, self._target)
            ends.append(back)
            pumps = [asyncio.ensure_future(self._pump(reader, back)), asyncio.ensure_future(self._pump(there, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # the server is down, or the link is cut: either way the peer sees a broken connection
        finally:
            self._open.discard(connection)
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
