"""Versions in chunks through Redis; `shared/transports/chunks.py` has the form.

There are at most the newest two, those that an actor is just reading, and the one that is being sent. Chunks leave the
last part of the server's memory to messages, as payloads do; where there is no room the learner waits and says so.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from services.learner.stop import Stop
from services.learner.talk.post import Post
from services.learner.weights.publish import versions_in_use
from shared.messages import WeightsNotice
from shared.redis_client import WEIGHTS_SHARE
from shared.streams import Keys
from shared.transports import chunks, delta
from shared.transports.chunks import Base, Contents, File
from shared.waiting import LongWait

log = logging.getLogger("headrace")

RETRY_S = 1.0
T = TypeVar("T")

_STORE = """
local memory = redis.call('INFO', 'memory')
local used = tonumber(string.match(memory, 'used_memory:(%d+)'))
local limit = tonumber(string.match(memory, 'maxmemory:(%d+)'))
if limit > 0 and used + #ARGV[2] > limit * ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class RedisSender:
    """See `services.learner.weights.transports.Sender`."""

    def __init__(self, post: Post, stop: Stop, *, delta: bool) -> None:
        """delta: also offer what each chunk differs by from the version sent before."""
        self._post, self._stop, self._delta = post, stop, delta
        self._client, self._keys = post.client, post.keys
        self._store = post.client.register_script(_STORE)
        self._last: tuple[WeightsNotice, Path] | None = None

    def send(self, notice: WeightsNotice, folder: Path) -> None:
        """Chunks first, then the contents, without which there is nothing to read."""
        key, name = chunks.key_of(self._keys, folder.name), folder.name
        self._forget(keep=1, sparing=name)
        self._patiently(lambda: _begin(self._client, self._keys, key, name))
        base = self._base(folder)
        files: list[File] = []
        number, saves = 0, False
        for file, size in chunks.files_in(folder):
            digests = []
            for start, length in chunks.cuts(size):
                self._stop.check()
                data = chunks.read(folder, file, start, length)
                digests.append(chunks.digest(data))
                self._put(key, str(number), data, sparing=name)
                if base is not None:
                    before = chunks.read(base[1], file, start, length)
                    change = delta.compress(data, before) if before != data else None
                    if change:
                        self._put(key, chunks.difference(number), change, sparing=name)
                    saves |= before == data or change is not None
                number += 1
            files.append(File(file, size, digests))
        offered = Base(base[0].version, base[0].digest) if base and saves else None
        self._put(key, chunks.CONTENTS, chunks.encode(Contents(notice.digest, files, offered)), sparing=name)
        self._last = notice, folder

    def has(self, notice: WeightsNotice) -> bool:
        """Whether the contents and every chunk are there."""
        key = chunks.key_of(self._keys, notice.location)
        found: Any = self._patiently(lambda: self._client.hget(key, chunks.CONTENTS))
        if found is None or (contents := chunks.decode(found)).digest != notice.digest:
            return False
        wanted = sum(len(file.chunks) for file in contents.files)
        there: Any = self._patiently(lambda: self._client.hlen(key))
        return there > wanted

    def _base(self, folder: Path) -> tuple[WeightsNotice, Path] | None:
        """The version sent before, where its files are still here and differences are wanted."""
        there = self._delta and self._last is not None and self._last[1] != folder and self._last[1].is_dir()
        return self._last if there else None

    def _put(self, key: str, field: str, data: bytes, sparing: str) -> None:
        wait = LongWait(first_s=0.0)
        while not self._patiently(lambda: self._store(keys=[key], args=[field, data, WEIGHTS_SHARE])):
            self._forget(keep=0, sparing=sparing)
            if wait.due():
                text = (
                    f"Redis has no room for weights since {wait.seconds:.0f} s: the learner waits, give it more memory "
                    "(maxmemory), or lower replay.max_bytes."
                )
                log.warning("%s", text)
                self._post.warn(text)
            self._stop.wait(RETRY_S)

    def _forget(self, keep: int, sparing: str) -> None:
        """Delete all versions but the newest `keep`, those that are being read, and this one."""

        def forget() -> None:
            reading = {version.directory for version in versions_in_use(self._client, self._keys, ("loading",))}
            there: Any = self._client.smembers(chunks.versions_key(self._keys))
            others = sorted(name for name in map(bytes.decode, there) if name != sparing)
            for name in others[: len(others) - keep]:
                if name not in reading:
                    with self._client.pipeline(transaction=True) as pipe:
                        pipe.unlink(chunks.key_of(self._keys, name))
                        pipe.srem(chunks.versions_key(self._keys), name)
                        pipe.execute()

        self._patiently(forget)

    def _patiently(self, call: Callable[[], T]) -> T:
        return self._post.patiently("send weights", call)


def _begin(client: Any, keys: Keys, key: str, name: str) -> None:
    """The name first, so that whatever follows can be found and deleted."""
    with client.pipeline(transaction=True) as pipe:
        pipe.sadd(chunks.versions_key(keys), name)
        pipe.unlink(key)
        pipe.execute()
