"""SIGINT and SIGTERM: while the service starts it ends at once, whatever it is in the midst of; then its server hears
them.

It imports little, to be the first that the process does.
"""

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from shared.told_to_stop import NUMBERS, when_told_to_stop

if TYPE_CHECKING:
    import uvicorn

_serving = threading.Event()


def end_at_once_while_starting() -> None:
    """Until `run`. What is half built is written aside, so nothing is lost. To be called in the main thread."""
    when_told_to_stop(_end_unless_serving)


def run(server: "uvicorn.Server", sock: socket.socket) -> None:
    """Answer on `sock` until a signal: the server's before its loop begins, which may take them from us (uvloop)."""
    for number in NUMBERS:
        signal.signal(number, server.handle_exit)
    _serving.set()
    server.run(sockets=[sock])


def _end_unless_serving() -> None:
    if not _serving.is_set():
        os._exit(0)
