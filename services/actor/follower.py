"""Follows the weights stream: each new version is swapped in, or refused and the one before kept."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from services.actor import metrics
from services.actor.engines.engine import CanaryRefused, Engine, EngineFailed
from services.actor.transports import make_receiver
from services.actor.wire import Wire
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.errors import UserError
from shared.messages import Malformed, WeightsNotice, decode
from shared.redis_client import BLOCK_MS
from shared.streams import FIELD
from shared.versions import Version
from shared.waiting import LongWait

log = logging.getLogger("headrace")
TRY_AGAIN_S = 10.0
NOT_SHARED = " (do learner and actors not share weights.dir? Set weights.transport to 'redis' or 'broadcast')"


class Follower:
    """Moves an engine along the published versions."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        wire: Wire,
        on_swap: Callable[[], Awaitable[None]],
        hold: Callable[[], Awaitable[None]],
    ) -> None:
        """`hold` tells the learner what is read now (`loading`), so that it is not deleted under the reader."""
        self.config, self.engine, self.wire, self.on_swap, self.hold = config, engine, wire, on_swap, hold
        self.loading: Version | None = None
        self._receiver = make_receiver(config, wire)
        self.swaps = self.refusals = 0
        self._missed: Version | None = None  # the last one that was announced and could not be had
        self.refused: Version | None = None  # the newest announced version, where its files are whole and not taken
        self._digest = ""  # of the weights in force
        self._swapped = asyncio.Condition()

    @property
    def number(self) -> int:
        """The weights in force; -1 before the first."""
        return self.engine.version.number if self.engine.version is not None else -1

    def close(self) -> None:
        """End what the transport has started."""
        self._receiver.close()

    async def wait_for(self, number: int, seconds: float) -> bool:
        """Wait until the weights in force are at least `number`; False when that takes longer than `seconds`, or when
        such weights are announced and refused.
        """
        if self.number >= number:
            return True
        metrics.WAITING.inc()
        try:
            async with asyncio.timeout(seconds), self._swapped:
                await self._swapped.wait_for(lambda: self.number >= number or self.refuses(number))
        except TimeoutError:
            return False
        finally:
            metrics.WAITING.dec()
        return self.number >= number

    def refuses(self, number: int) -> bool:
        """Whether weights of this number could be had, and are refused."""
        return self.refused is not None and self.refused.number >= number

    async def run(self) -> None:
        """The newest notice there is, then each new one as it is pushed; notices that were overtaken are skipped.

        A version whose files are not there is tried again every TRY_AGAIN_S until a newer one comes: they may be late.
        """
        client, stream = self.wire.client, self.wire.keys.weights
        notices: Any = await self.wire.call(lambda: client.xrevrange(stream, count=1))
        last: Any = b"0"
        seen: Any = None  # the entry that was taken up last
        missing, tried = False, 0.0
        wait = LongWait()
        while True:
            raise_if_cancelled()
            if self.number < 0 and wait.due():
                await self._tell_of_waiting(wait.seconds)
            if notices:
                last, fields = seen = notices[-1]
                missing, tried = not await self._adopt(fields.get(FIELD, b"")), time.monotonic()
            reply: Any = await self.wire.call(lambda last=last: client.xread({stream: last}, 64, BLOCK_MS))
            # ids go back on an emptied server whose clock is behind, or within a millisecond: nothing is pushed then
            newest: Any = reply[0][1] if reply else await self.wire.call(lambda: client.xrevrange(stream, count=1))
            notices = [entry for entry in newest if entry != seen]
            if missing and not notices and time.monotonic() - tried >= TRY_AGAIN_S:
                notices = [seen]

    async def _tell_of_waiting(self, seconds: float) -> None:
        offered = "is the learner running?"
        if self._missed is not None:
            offered = f"{self._missed} are published, and not there"
        if self.refusals:
            offered = "the ones that were published are refused"
        text = f"actor {self.wire.name} has waited {seconds:.0f} s for its first weights: {offered}"
        await self.wire.warn(text)

    async def _adopt(self, data: bytes) -> bool:
        """Swap the announced version in; False when its files are missing.

        An older one too, or the same with other bits: only the newest life of the learner can announce one
        (services/learner/talk/outbox.py), so on an emptied server its steps are counted from a checkpoint again.
        """
        try:
            notice = decode(data, WeightsNotice)
        except Malformed as error:
            await self.wire.warn(f"a weights notice is not readable: {error}")
            return True
        if (notice.version, notice.digest) == (self.engine.version, self._digest):
            return True  # announced again, for an actor that refused it
        self.loading = notice.version
        await self.hold()
        limit = self.config.weights.swap_timeout_s
        try:
            directory = await self._fetched(notice)
            if directory is None:
                return False
            await self.engine.verify(notice, directory)
            async with asyncio.timeout(limit):
                stall = await self.engine.swap(notice, directory)
        except CanaryRefused as error:
            async with self._swapped:
                self.refused = notice.version
                self._swapped.notify_all()
            await self._refuse(notice, error)
            return True
        except TimeoutError:
            raise EngineFailed(
                f"the swap to weights {notice.version} did not end within weights.swap_timeout_s = {limit:g} s"
            ) from None
        finally:
            self.loading = None
        self._digest = notice.digest
        self.swaps += 1
        metrics.SWAP.observe(stall)
        metrics.VERSION.set(notice.version.number)
        seconds = time.time() - notice.published
        log.info("weights %s in force, %.3f s after they were published (stall %.3f s)", notice.version, seconds, stall)
        async with self._swapped:
            self.refused = None
            self._swapped.notify_all()
        version = str(notice.version)
        await self.wire.emit("swap", actor=self.wire.name, version=version, seconds=seconds, stall_s=stall)
        await self.on_swap()
        return True

    async def _fetched(self, notice: WeightsNotice) -> Path | None:
        """The version's folder; None where it cannot be had, which is no word about its weights."""
        try:
            directory, there = await self._receiver.fetch(notice, self.engine.version)
            why = f"{directory} is not there" + NOT_SHARED * (self.config.weights.transport == "folder")
        except UserError as error:
            directory, there, why = Path(), False, str(error)
        if there:
            return directory
        self.refused = None
        metrics.MISSING.inc()
        text = f"weights {notice.version} are announced, and {why}; looked for again every {TRY_AGAIN_S:g} s."
        if self._missed == notice.version:
            log.warning("%s", text)
        else:
            await self.wire.warn(f"actor {self.wire.name}: {text}")
        self._missed = notice.version
        return None

    async def _refuse(self, notice: WeightsNotice, error: CanaryRefused) -> None:
        self.refusals += 1
        metrics.REFUSED.inc()
        log.error("weights %s are refused, %s stay in force: %s", notice.version, self.engine.version, error)
        await self.wire.emit("refused", actor=self.wire.name, version=str(notice.version), reason=str(error))
