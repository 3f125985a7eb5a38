"""Versions in chunks from Redis, put together in a folder of this machine; `shared/transports/chunks.py` has the form.

    <received>/.part-v0000-00000012/   what has come so far; a chunk whose digest is right is not fetched again
    <received>/v0000-00000012/         whole, as the learner wrote it

Actors of one machine may share the folder: one fetches, the others wait for it. A version goes when it is not among the
newest two and no live actor reports it.
"""

import asyncio
import fcntl
import logging
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from services.actor import metrics
from services.actor.wire import Wire
from shared import heartbeats, weights
from shared.cancellation import stop
from shared.errors import UserError
from shared.messages import WeightsNotice
from shared.transports import chunks, delta
from shared.transports.chunks import Contents, Place
from shared.versions import Version

log = logging.getLogger("headrace")

_PART = ".part-"
_LOOK_AGAIN_S = 0.1
_AHEAD = 3  # chunks that are fetched while another is checked and written
_KEPT = 2  # the version that is new, and the one that is left


class RedisReceiver:
    """See `services.actor.transports.Receiver`."""

    def __init__(self, wire: Wire, root: Path) -> None:
        self._wire, self._root = wire, root

    async def fetch(self, notice: WeightsNotice, in_force: Version | None) -> tuple[Path, bool]:
        """What is there is not fetched: a whole version, or chunks of one. A version that is gone is not there."""
        folder = self._root / notice.location
        try:
            await asyncio.to_thread(self._root.mkdir, parents=True, exist_ok=True)
            async with self._alone():
                there = await asyncio.to_thread(_is_whole, folder, notice.digest) or await self._received(
                    folder, notice
                )
                await self._forget({notice.version, in_force})
        except OSError as error:
            raise UserError(
                f"weights cannot be received in {self._root} ({error}): make room there, or set weights.received."
            ) from None
        return folder, there

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """No other actor of this machine writes meanwhile; the lock of one that dies is free."""
        with (self._root / ".lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOOK_AGAIN_S)
            yield

    async def _received(self, folder: Path, notice: WeightsNotice) -> bool:
        """Fetch what is missing; False where Redis has the version no more, or another of its name by now."""
        found = await self._get(notice, chunks.CONTENTS)
        if found is None or (contents := chunks.decode(found)).digest != notice.digest:
            return False
        part, base = self._root / f"{_PART}{folder.name}", self._base(contents, notice)
        taking = deque[asyncio.Task[bool]]()
        try:
            for place in await asyncio.to_thread(_missing, part, contents):
                taking.append(asyncio.create_task(self._take(place, part, base, notice)))
                if len(taking) > _AHEAD and not await taking.popleft():
                    return False
            while taking:
                if not await taking.popleft():
                    return False
        finally:
            await stop(*taking)
            await asyncio.gather(*taking, return_exceptions=True)  # one that failed has been told of by another
        await asyncio.to_thread(_finish, part, folder, contents)
        return True

    def _base(self, contents: Contents, notice: WeightsNotice) -> Path | None:
        """The folder that differences are to, where it is here and the right one."""
        if contents.base is None:
            return None
        folder = self._root / contents.base.version.directory
        if weights.digest_in(folder) == contents.base.digest:
            return folder
        log.warning(
            "weights %s are offered as differences to %s, which is not in %s with digest %s: all of it is fetched",
            *(notice.version, contents.base.version, self._root, contents.base.digest),
        )
        return None

    async def _take(self, place: Place, part: Path, base: Path | None, notice: WeightsNotice) -> bool:
        """Write a chunk, by its difference where that gives what was announced, else whole; False where it is gone."""
        if base is not None:
            change = await self._get(notice, chunks.difference(place.number))
            if change is not None and await asyncio.to_thread(_changed, change, base, part, place):
                return True
        data = await self._get(notice, str(place.number))
        return data is not None and await asyncio.to_thread(_written, part, place, data)

    async def _get(self, notice: WeightsNotice, field: str) -> bytes | None:
        key = chunks.key_of(self._wire.keys, notice.location)
        data: Any = await self._wire.call(lambda: cast(Any, self._wire.client.hget(key, field)))
        metrics.RECEIVED.inc(len(data or b""))
        return data

    async def _forget(self, spared: set[Version | None]) -> None:
        """Delete old versions, and what is left of transfers that were given up."""
        beats = await self._wire.call(lambda: heartbeats.all_known(self._wire.client, self._wire.keys))
        spared |= heartbeats.versions(beats.values())
        names = {version.directory for version in spared if version is not None}

        def forget() -> None:
            old = weights.published(self._root)[:-_KEPT]
            doomed = [self._root / version.directory for version in old if version.directory not in names]
            doomed += [p for p in self._root.glob(f"{_PART}*") if p.name.removeprefix(_PART) not in names]
            for path in doomed:
                shutil.rmtree(path, ignore_errors=True)

        await asyncio.to_thread(forget)


def _is_whole(folder: Path, digest: str) -> bool:
    try:
        weights.verify(folder, digest)
    except UserError:
        return False
    return True


def _missing(part: Path, contents: Contents) -> list[Place]:
    places = chunks.places(contents)
    return [place for place in places if chunks.digest(chunks.read(part, *place.cut)) != place.digest]


def _written(part: Path, place: Place, data: bytes) -> bool:
    """False where it is not what was announced."""
    if chunks.digest(data) != place.digest:
        return False
    path = part / place.file
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(handle, data, place.start)
    finally:
        os.close(handle)
    return True


def _changed(change: bytes, base: Path, part: Path, place: Place) -> bool:
    """False, and a warning, where the difference does not give what was announced."""
    try:
        data = delta.expand(change, chunks.read(base, *place.cut))
    except ValueError as error:
        reason = str(error)
    else:
        if _written(part, place, data):
            return True
        reason = "it does not give the announced digest"
    log.warning("the difference of chunk %d of %s is not used (%s): it is fetched", place.number, place.file, reason)
    return False


def _finish(part: Path, folder: Path, contents: Contents) -> None:
    """The files at their announced length, nothing beside them, under the version's name."""
    sizes = {file.name: file.size for file in contents.files}
    for name, size in sizes.items():
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        with (part / name).open("ab") as file:
            file.truncate(size)
    for name, _ in chunks.files_in(part):
        if name not in sizes:
            (part / name).unlink()
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
