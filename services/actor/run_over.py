"""The end of the run, as an actor learns of it: replay's counters say finished, at this actor's run.steps or beyond.

It then leaves with status 0 and its GPUs are free; so does one that starts later, before it loads anything. An actor
that was told of more steps than replay has finished stays: the run is being resumed.
"""

import asyncio
import logging

import msgspec
import redis
import redis.asyncio

from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.messages import UNREADABLE
from shared.outage import raise_if_refused
from shared.streams import Keys

log = logging.getLogger("headrace")
LOOK_S = 2.0


class RunOver(Exception):
    """No task will ever come."""


class _Counters(msgspec.Struct):
    """The two of replay's that matter here; the others are passed over."""

    finished: bool = False
    step: int = 0


async def raise_if_over(config: Config, client: redis.asyncio.Redis) -> None:
    """RunOver, where the run has finished. A server that does not answer knows of no end; whoever cares asks again."""
    try:
        data = await client.get(Keys(config.run.name).state)
    except (redis.RedisError, OSError) as error:
        raise_if_refused(error)
        log.debug("whether the run is over is not known: %s", error)
        return
    try:
        counters = msgspec.json.decode(data, type=_Counters) if data else _Counters()
    except UNREADABLE as error:
        log.warning("whether the run is over cannot be read: %s", error)
        return
    if counters.finished and counters.step >= config.run.steps:
        raise RunOver(f"the run has finished its {counters.step} steps")


async def watch_end(config: Config, client: redis.asyncio.Redis) -> None:
    """Look every LOOK_S seconds, until RunOver is raised."""
    while True:
        raise_if_cancelled()
        await raise_if_over(config, client)
        await asyncio.sleep(LOOK_S)
