"""How long a client may take to send a request: a connection that says nothing, or drips, is closed.

uvicorn has a time limit between requests alone, and its connections are bounded: without this one, whoever opened that
many and said nothing would shut everybody else out for as long as he stayed.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

REQUEST_S = 20.0  # from the connection, or from a later request's first byte, to the end of the request's body


class RequestDeadline(asyncio.Protocol):
    """In front of a protocol of uvicorn's, h11's or httptools': only the arrival of a request has a limit here, not
    its answer and not the time between two requests.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any  # the newest request whose headers are here, with its answer; None before the first
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing has come."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """The request is whole, or a part of it is still missing."""
        super().data_received(data)
        if self.cycle and not self.cycle.more_body and not self.cycle.response_complete:
            self._end()
        else:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self._cut)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._deadline = None
        if getattr(self, "pipeline", None):  # httptools' has stopped reading until the request before this is answered
            self._begin()
        else:
            self.transport.abort()


class HttpProtocol(RequestDeadline, AutoHTTPProtocol):
    """The faster one of those that are installed."""
