"""Versions in chunks through Redis; `shared/transports/chunks.py` has the form.

There are at most the newest two, those that an actor is just reading, and the one that is being sent. Chunks leave the
last part of the server's memory to messages, as payloads do; where there is no room the learner waits and says so.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from services.learner import waits
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights.version_files import versions_in_use
from shared.errors import UserError
from shared.messages import WeightsNotice
from shared.redis_client import WEIGHTS_SHARE, is_full, room
from shared.streams import Keys
from shared.transports import chunks, delta
from shared.transports.chunks import Base, Contents, File
from shared.waiting import LongWait

log = logging.getLogger("headrace")

RETRY_S = 1.0
AHEAD = 4  # chunks that are read, digested and compared while another is sent
S = TypeVar("S")
T = TypeVar("T")


class Cut(NamedTuple):
    """Where a chunk is read."""

    file: str
    start: int
    length: int


class Prepared(NamedTuple):
    """A chunk, and what it differs by from the base: None is as good as everything."""

    data: bytes
    digest: bytes
    change: bytes | None


class RedisSender:
    """See `services.learner.weights.transports.Sender`."""

    def __init__(self, outbox: Outbox, stop: Stop, *, delta: bool) -> None:
        """delta: also offer what each chunk differs by from the version sent before."""
        self._outbox, self._stop, self._delta = outbox, stop, delta
        self._client, self._keys = outbox.client, outbox.keys
        self._last: tuple[WeightsNotice, Path] | None = None
        self._room = 0.0  # bytes, as of the last chunk

    def send(self, notice: WeightsNotice, folder: Path) -> None:
        """Chunks first, then the contents, without which there is nothing to read."""
        key, name = chunks.key_of(self._keys, folder.name), folder.name
        self._forget(keep=1, sparing=name)
        self._patiently(lambda: _begin(self._client, self._keys, key, name))
        base = self._base(folder)
        sizes = chunks.files_in(folder)
        cuts = [Cut(file, *cut) for file, size in sizes for cut in chunks.cuts(size)]
        digests: dict[str, list[bytes]] = {file: [] for file, _ in sizes}
        saves = False
        prepare = partial(_prepared, folder, base[1] if base else None)
        for number, (cut, chunk) in enumerate(zip(cuts, _ahead(prepare, cuts), strict=True)):
            self._stop.check()
            fields = {str(number): chunk.data}
            if chunk.change is not None:
                fields[chunks.difference(number)] = chunk.change
            self._put(key, fields, sparing=name)
            digests[cut.file].append(chunk.digest)
            saves |= chunk.change is not None
        files = [File(file, size, digests[file]) for file, size in sizes]
        offered = Base(base[0].version, base[0].digest) if base and saves else None
        contents = chunks.encode(Contents(notice.digest, files, offered))
        self._put(key, {chunks.CONTENTS: contents}, sparing=name)
        self._last = notice, folder

    def has(self, notice: WeightsNotice) -> bool:
        """Whether the contents and every chunk are there."""
        key = chunks.key_of(self._keys, notice.location)
        found: Any = self._patiently(lambda: self._client.hget(key, chunks.CONTENTS))
        try:
            if found is None or (contents := chunks.decode(found)).digest != notice.digest:
                return False
        except UserError as error:
            log.warning("%s", error)
            return False
        wanted = sum(len(file.chunks) for file in contents.files)
        there: Any = self._patiently(lambda: self._client.hlen(key))
        return there > wanted

    def _base(self, folder: Path) -> tuple[WeightsNotice, Path] | None:
        """The version sent before, where its files are still here and differences are wanted."""
        there = self._delta and self._last is not None and self._last[1] != folder and self._last[1].is_dir()
        return self._last if there else None

    def _put(self, key: str, fields: dict[str, bytes], sparing: str) -> None:
        wait = LongWait(first_s=0.0)
        while not self._patiently(lambda: self._stored(key, fields)):
            self._forget(keep=0, sparing=sparing)
            waits.ROOM.set(wait.seconds)
            if wait.due():
                text = (
                    f"Redis has no room for weights since {wait.seconds:.0f} s: the learner waits, give it more memory "
                    "(maxmemory), or lower replay.max_bytes."
                )
                log.warning("%s", text)
                self._outbox.warn(text)
            self._stop.wait(RETRY_S)
        waits.ROOM.set(0)

    def _stored(self, key: str, fields: dict[str, bytes]) -> bool:
        """False where that would take more than the share of the server's memory.

        Plain commands: as arguments of a script the chunks would be copied twice more, which takes the server four
        times as long. What others write in between is far less than what the share leaves them.
        """
        size = sum(map(len, fields.values()))
        if size > self._room:
            memory: Any = self._client.info("memory")
            self._room = room(memory, WEIGHTS_SHARE)
        if size > self._room:
            return False
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hset(key, mapping=cast(Any, fields))
            pipe.info("memory")
            replies: Any = pipe.execute(raise_on_error=False)
        stored, memory = replies
        self._room = room(memory, WEIGHTS_SHARE) if isinstance(memory, dict) else 0.0
        if isinstance(stored, Exception) and not is_full(stored):
            raise stored
        return not isinstance(stored, Exception)

    def _forget(self, keep: int, sparing: str) -> None:
        """Delete all versions but the newest `keep`, those that are being read, and this one."""

        def forget() -> None:
            reading = {version.directory for version in versions_in_use(self._client, self._keys, ("loading",))}
            there: Any = self._client.smembers(chunks.versions_key(self._keys))
            others = sorted(name for name in (each.decode(errors="replace") for each in there) if name != sparing)
            for name in others[: len(others) - keep]:
                if name not in reading:
                    with self._client.pipeline(transaction=True) as pipe:
                        pipe.unlink(chunks.key_of(self._keys, name))
                        pipe.srem(chunks.versions_key(self._keys), name)
                        pipe.execute()

        self._patiently(forget)

    def _patiently(self, call: Callable[[], T]) -> T:
        return self._outbox.patiently("send weights", call)


def _begin(client: Any, keys: Keys, key: str, name: str) -> None:
    """The name first, so that whatever follows can be found and deleted."""
    with client.pipeline(transaction=True) as pipe:
        pipe.sadd(chunks.versions_key(keys), name)
        pipe.unlink(key)
        pipe.execute()


def _prepared(folder: Path, base: Path | None, cut: Cut) -> Prepared:
    data = chunks.read(folder, *cut)
    change = None if base is None else delta.compress(data, chunks.read(base, *cut))
    return Prepared(data, chunks.digest(data), change)


def _ahead(call: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """The results in their order, some of them made in threads beside whoever takes them."""
    with ThreadPoolExecutor(AHEAD) as pool:
        begun: deque[Future[T]] = deque()
        for item in items:
            begun.append(pool.submit(call, item))
            if len(begun) > AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
