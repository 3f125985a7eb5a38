"""Follows a run whose processes are somebody else's, from its events and heartbeats alone."""

import asyncio
import os
import signal
import time
from contextlib import suppress

import redis

from cli.run.listener import Listener
from cli.run.progress import Screen
from cli.run.recorder import Recorder
from cli.run.view import RunView
from shared import heartbeats
from shared.cancellation import stop as stop_tasks
from shared.config import Config, without_password
from shared.outage import raise_if_refused
from shared.redis_client import SPOKEN, connect_async, is_replica, until_up, why_waited_for
from shared.streams import Keys

LOOK_S = 1.0
LONG_S = 15.0  # between two steps nobody has to be told


async def follow_to_end(config: Config, screen: Screen) -> bool:
    """Record and show until the run has finished (True) or a signal (False). UserError without a server."""
    shown, limit_s = without_password(config.redis.url), config.redis.wait_s
    print(f"Following '{config.run.name}' in Redis at {shown}, for which it waits up to {limit_s:g} s.", flush=True)
    await until_up(config.redis.url, limit_s)  # there is nothing to record yet: a signal ends it at once
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means what it says
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    view = RunView(config.run.name, config.run.steps, time.time())
    recorder = Recorder(config.run_dir)
    recorder.note("session", pid=os.getpid(), steps=config.run.steps, env_latency=config.env.latency)
    listener = Listener(config, view, recorder)
    client, keys = connect_async(config.redis.url), Keys(config.run.name)
    following = asyncio.ensure_future(listener.follow(client))
    ends = [asyncio.ensure_future(listener.over.wait()), asyncio.ensure_future(stop.wait())]
    try:
        while not any(work.done() for work in (following, *ends)):
            try:
                if await is_replica(client):
                    view.wait_for_primary(time.time())
                else:
                    view.actors = await heartbeats.alive(client, keys)
                    view.waiting_for = waits(view, await heartbeats.of_replay(client, keys))
            except (redis.RedisError, OSError) as error:
                raise_if_refused(error)
                view.waiting_for = [f"{SPOKEN[why_waited_for(error)]} at {shown}"]
            with suppress(OSError):  # nobody reads the pipe: it is recorded all the same
                screen.show(view)
            await asyncio.wait([following, *ends], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        return listener.over.is_set()
    finally:
        await stop_tasks(following, *ends)
        await listener.drain(client)
        recorder.close()
        await client.aclose()


def waits(view: RunView, beat: heartbeats.Beat | None) -> list[str]:
    """What is worth showing of what replay says that it waits for."""
    if view.finished:
        return []
    if beat is None:
        return ["a replay service to report"]
    what, since_s = beat.get("waiting_for"), beat.get("waiting_s", 0.0)
    return [what] if what and (view.phase == "starting" or since_s > LONG_S) else []
