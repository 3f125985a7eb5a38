"""Versions in chunks from Redis, put together in a folder of this machine; `shared/transports/chunks.py` has the form.

An actor that is killed in the middle leaves .part-v0000-00000012; a chunk that is there with its digest is not fetched
again.
"""

import asyncio
import logging
import os
import shutil
from collections import deque
from pathlib import Path
from typing import Any, cast

from services.actor import metrics
from services.actor.transports.received import PART, Received
from shared import weights
from shared.cancellation import stop
from shared.messages import WeightsNotice
from shared.transports import chunks, delta
from shared.transports.chunks import Contents, Place

log = logging.getLogger("headrace")

_AHEAD = 3  # chunks that are fetched while another is checked and written


class RedisReceiver(Received):
    """Chunk by chunk; what is there of a version is not fetched again."""

    async def _received(self, folder: Path, notice: WeightsNotice) -> bool:
        """Fetch what is missing; False where Redis has the version no more, or another of its name by now."""
        found = await self._get(notice, chunks.CONTENTS)
        if found is None or (contents := chunks.decode(found)).digest != notice.digest:
            return False
        part, base = self._root / f"{PART}{folder.name}", self._base(contents, notice)
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
