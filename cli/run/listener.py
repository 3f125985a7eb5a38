"""Reads a run's events as they come: records them, and keeps what is shown of the run up to date."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio

from cli.run.recorder import BEGINNING, Recorder, place
from cli.run.view import RunView
from shared import events
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.errors import UserError
from shared.files import FULL, REFUSED
from shared.outage import raise_if_refused
from shared.streams import Keys

RETRY_S = 0.5
DRAIN_S = 1.0

Event = dict[str, Any]


class Listener:
    """One reader of the events stream. `over` is set when the run has finished all of its steps."""

    def __init__(
        self, config: Config, view: RunView, recorder: Recorder, on_event: Callable[[Event], None] = lambda event: None
    ) -> None:
        """What was recorded in earlier sessions is shown first. on_event: called with each new event."""
        self.view, self.recorder, self.over = view, recorder, asyncio.Event()
        self._keys, self._on_event = Keys(config.run.name), on_event
        self._at = recorder.last_id  # the stream is read up to here
        self._again = set[tuple[str, float]]()  # the id and time of what may be read once more
        for record in recorder.records():
            self._show(record)

    async def follow(self, client: redis.asyncio.Redis) -> None:
        """For ever; a server that is away is waited for, and a disk that is full or fails. UserError where the run's
        folder cannot be written until a person mends it, or Redis forbids the user to read.
        """
        while True:
            raise_if_cancelled()
            try:
                reply = await client.xread({self._keys.events: self._at}, count=500, block=1000)
                if not reply:
                    await self._begin_again_where_ids_go_back(client)
            except (redis.RedisError, OSError) as error:
                raise_if_refused(error)
                await asyncio.sleep(RETRY_S)
                continue
            try:
                self._take(reply)
            except OSError as error:  # what was not recorded is read again
                folder = self.recorder.events_path.parent
                if error.errno in REFUSED:
                    raise UserError(
                        f"{folder} cannot be written ({error}): make it a folder that this command may write, and "
                        "start it again."
                    ) from None
                mend = "make room there" if error.errno in FULL else "see what is wrong with its disk"
                self.view.warn(f"{folder} takes no more records ({error}): {mend}", time.time())
                await asyncio.sleep(RETRY_S)

    async def drain(self, client: redis.asyncio.Redis) -> None:
        """What was said up to now and not read yet, as far as a server that may hang tells it at once."""
        with suppress(redis.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while reply := await client.xread({self._keys.events: self._at}, count=500):
                    self._take(reply)

    async def _begin_again_where_ids_go_back(self, client: redis.asyncio.Redis) -> None:
        """As on an emptied server, or an older state of it, whose clock is behind: nothing that it adds lies above."""
        newest: Any = await client.xrevrange(self._keys.events, count=1)
        if newest and place(newest[0][0].decode()) < place(self._at):
            self._at, self._again = BEGINNING, self.recorder.recorded()

    def _take(self, reply: Any) -> None:
        for id, record in events.parse(reply):
            if (id.decode(), record["time"]) not in self._again:
                self.recorder.add(id, record)
                self._show(record)
                self._on_event(record)
            self._at = id.decode()

    def _show(self, record: Event) -> None:
        self.view.update(record)
        if self.view.finished:
            self.over.set()
