"""A server between a client and a real Redis, which says what a test wants, or falls silent, over a real connection."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress


@contextmanager
def proxied(
    url: str,
    reply: Callable[[bytes], bytes] = lambda data: data,
    silent_at: bytes | None = None,
    silent: threading.Event | None = None,
) -> Iterator[str]:
    """The address to use in place of `url`. `reply` changes what the server says, piece by piece; after a client has
    sent `silent_at` nobody hears anything more, as from a server that hangs, which sets `silent`.
    """
    before, _, address = url.rpartition("@")
    host, port, database = address.partition(":")[0], *address.partition(":")[2].split("/")
    hangs = silent or threading.Event()
    links: list[socket.socket] = []

    def pump(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with suppress(OSError), closing(source), closing(target):
            while data := source.recv(2**16):
                data = change(data)
                if not hangs.is_set():
                    target.sendall(data)

    def ask(data: bytes) -> bytes:
        if silent_at is not None and silent_at in data:
            hangs.set()
        return data

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((host, int(port)), timeout=10)
                server.settimeout(None)
                links.extend((client, server))
                for words in ((client, server, ask), (server, client, reply)):
                    threading.Thread(target=pump, args=words, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        try:
            yield f"{before}@127.0.0.1:{listener.getsockname()[1]}/{database}"
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            for link in links:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)


def called_old(said: bytes) -> bytes:
    """The same INFO of a server that is Redis 5.0; as long as before, since its length was told."""
    return re.sub(rb"(redis_version:)\d\.\d", rb"\g<1>5.0", said)
