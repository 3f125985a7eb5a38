"""Versions by broadcast; `shared/transports/broadcast.py` has the form.

Files are written as they come, and are a version when the digest of the whole is right. The version in force stays a
folder beside them, to go back to until the canary has passed.
"""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any, cast

import msgspec

from services.actor import metrics
from services.actor.transports.received import PART, Received
from services.actor.wire import Wire
from shared.cancellation import raise_if_cancelled
from shared.messages import WeightsNotice
from shared.transports import broadcast
from shared.transports.broadcast import Carrier, Round, RoundBroken, Wanted

log = logging.getLogger("headrace")

TRIES = 3
ASKS, ASK_AGAIN_S = 12, 10.0  # the learner may have rounds to hold before this one, and Redis may have been emptied


class BroadcastReceiver(Received):
    """A round for each version; another one where it is broken."""

    def __init__(self, wire: Wire, root: Path) -> None:
        super().__init__(wire, root)
        self._carrier: Carrier | None = None

    def close(self) -> None:
        """End the process that carries."""
        if self._carrier is not None:
            self._carrier.kill()

    async def _received(self, folder: Path, notice: WeightsNotice) -> bool:
        """False where the learner does not answer, has the version no more, or every try was broken."""
        part = self._root / f"{PART}{folder.name}"
        for _ in range(TRIES):
            try:
                carrier = await self._up()
                round = await self._invited(notice, carrier.gpu)
                if round is None:
                    return False
                await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
                answer = await self._taking(carrier, lambda c=carrier, r=round: c.take_part(r, str(part)))
            except RoundBroken as error:
                log.warning("the broadcast of weights %s was broken: %s", notice.version, error)
                continue
            if answer["right"]:
                metrics.RECEIVED.inc(notice.size)
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                part.rename(folder)
                return True
            if answer["disk"]:
                raise OSError(answer["disk"])
            log.warning("weights %s came by broadcast with another digest, and are not taken", notice.version)
        return False

    async def _up(self) -> Carrier:
        if self._carrier is None or not self._carrier.alive():
            self.close()
            self._carrier = Carrier("cuda:0")
        carrier = self._carrier
        return await self._taking(carrier, carrier.up)

    async def _taking(self, carrier: Carrier, call: Any) -> Any:
        """What the carrier is asked, in a thread; whoever is told to stop meanwhile ends the carrier."""
        try:
            return await asyncio.to_thread(call)
        except asyncio.CancelledError:
            carrier.kill()
            raise

    async def _invited(self, notice: WeightsNotice, gpu: str) -> Round | None:
        """Ask for the version, until the learner says where; None where it says nothing, or that there is none."""
        client, keys = self._wire.client, self._wire.keys
        wanted, told = broadcast.wanted_key(keys), broadcast.round_key(keys, self._wire.name)
        entry = msgspec.msgpack.encode(Wanted(self._wire.name, notice.location, notice.digest, gpu))

        async def ask() -> None:
            async with client.pipeline(transaction=True) as pipe:
                pipe.lrem(wanted, 0, cast(Any, entry))
                pipe.rpush(wanted, entry)
                await pipe.execute()

        await self._wire.call(lambda: client.delete(told))
        round = None
        for _ in range(ASKS):
            raise_if_cancelled()
            await self._wire.call(ask)
            letter: Any = await self._wire.call(lambda: cast(Any, client.blpop([told], timeout=ASK_AGAIN_S)))
            if letter is not None:
                found = broadcast.decode(letter[1], Round) if letter[1] else None
                if found is None or found.digest == notice.digest:
                    round = found
                    break
        await self._wire.call(lambda: cast(Any, client.lrem(wanted, 0, cast(Any, entry))))
        return round
