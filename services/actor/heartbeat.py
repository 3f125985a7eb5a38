"""What an actor tells the others about itself, and the watch on its engine, from its start on."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import psutil
import redis.asyncio

from services.actor.engines.engine import Engine, EngineFailed
from shared.cancellation import stop
from shared.streams import Keys
from shared.waiting import LongWait

log = logging.getLogger("headrace")
TTL_S = 10
START_S, SLOW_START_S = 3600.0, 60.0  # the longest honest start: a large model from a slow disk, its kernels compiled


def actor_name() -> str:
    """Unique over hosts, containers and restarts, so that what a dead actor left is never mistaken for ours."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"


def resident_bytes() -> int:
    """Resident memory of this process and its children (vLLM's engine is one)."""
    me = psutil.Process()
    total = 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue  # it ended meanwhile
    return total


async def report(client: redis.asyncio.Redis, keys: Keys, name: str, fields: Mapping[str, Any]) -> None:
    """One heartbeat: a JSON value that expires by itself, and the name in the set of actors."""
    async with client.pipeline(transaction=True) as pipe:
        pipe.set(keys.actor(name), msgspec.json.encode(fields), ex=TTL_S)
        pipe.sadd(keys.actors, name)
        await pipe.execute()


async def sign_off(client: redis.asyncio.Redis, keys: Keys, name: str) -> None:
    """Take the heartbeat away at once."""
    async with client.pipeline(transaction=True) as pipe:
        pipe.delete(keys.actor(name))
        pipe.srem(keys.actors, name)
        await pipe.execute()


async def start_engine(engine: Engine, deadline_s: float = START_S) -> None:
    """Start it, and say in the log while that takes long. Raises EngineFailed when it has not come up by then."""
    starting, wait = asyncio.ensure_future(engine.start()), LongWait(SLOW_START_S)
    try:
        while not starting.done():
            await asyncio.wait({starting}, timeout=min(1.0, deadline_s / 4))
            if wait.due():
                log.info("loading the model since %.0f s", wait.seconds)
            if wait.seconds > deadline_s and not starting.done():
                raise EngineFailed(f"the {engine.name} engine has not loaded the model within {deadline_s:g} s")
    finally:
        await stop(starting)
    starting.result()


async def watch_engine(engine: Engine, busy: Callable[[], bool], deadline_s: float) -> None:
    """Raise EngineFailed when the engine has work and gets nothing done for `deadline_s`."""
    seen, since = engine.progress, time.monotonic()
    while True:
        await asyncio.sleep(min(1.0, deadline_s / 4))
        if engine.progress != seen or not busy():
            seen, since = engine.progress, time.monotonic()
        elif time.monotonic() - since > deadline_s:
            raise EngineFailed(f"the {engine.name} engine has sampled nothing for {deadline_s:g} s while it had work")
