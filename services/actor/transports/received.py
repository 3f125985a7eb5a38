"""Versions that travel end in a folder of this machine.

    <received>/.part-v0000-00000012/   what has come so far
    <received>/v0000-00000012/         whole, as the learner wrote it

Actors of one machine may share the folder: one brings a version, the others wait for it. A version goes when it is not
among the newest two and no live actor reports it.
"""

import asyncio
import fcntl
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.actor.wire import Wire
from shared import heartbeats, weights
from shared.errors import UserError
from shared.messages import WeightsNotice
from shared.versions import Version
from shared.waiting import LongWait

PART = ".part-"
_LOOK_AGAIN_S, _TELL_S = 0.1, 30.0
_KEPT = 2  # the version that is new, and the one that is left


class Received(ABC):
    """See `services.actor.transports.Receiver`; a transport says how a version comes."""

    def __init__(self, wire: Wire, root: Path) -> None:
        self._wire, self._root = wire, root

    async def fetch(self, notice: WeightsNotice, in_force: Version | None) -> tuple[Path, bool]:
        """A version that is there whole is not brought again; one that cannot be had is not there."""
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

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Nothing is held between two versions."""

    @abstractmethod
    async def _received(self, folder: Path, notice: WeightsNotice) -> bool:
        """Bring the version and name it `folder`; False where it cannot be had. OSError where it cannot be written."""

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """No other actor of this machine writes meanwhile; the lock of one that dies is free, one that is stopped is
        told of.
        """
        with (self._root / ".lock").open("w") as lock:
            wait = LongWait(_TELL_S)
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if wait.due():
                        await self._wire.warn(
                            f"actor {self._wire.name} has waited {wait.seconds:.0f} s for another of this machine that "
                            f"receives weights in {self._root}: is it stopped? Its end frees the others."
                        )
                    await asyncio.sleep(_LOOK_AGAIN_S)
            yield

    async def _forget(self, spared: set[Version | None]) -> None:
        """Delete old versions, and what is left of transfers that were given up."""
        beats = await self._wire.call(lambda: heartbeats.all_known(self._wire.client, self._wire.keys))
        spared |= heartbeats.versions(beats.values())
        names = {version.directory for version in spared if version is not None}

        def forget() -> None:
            old = weights.published(self._root)[:-_KEPT]
            doomed = [self._root / version.directory for version in old if version.directory not in names]
            doomed += [p for p in self._root.glob(f"{PART}*") if p.name.removeprefix(PART) not in names]
            for path in doomed:
                shutil.rmtree(path, ignore_errors=True)

        await asyncio.to_thread(forget)


def _is_whole(folder: Path, digest: str) -> bool:
    try:
        weights.verify(folder, digest)
    except UserError:
        return False
    return True
