"""Cancellation that arrives for certain.

On Python 3.11 `asyncio.wait_for`, which redis-py awaits at every command, drops a cancellation that comes in the
moment its future completes. So whoever cancels asks again until the task is done, and every endless loop checks
whether it was asked. What has to happen on the way out is not to be cut off by being asked once more: `to_the_end`.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

ASK_AGAIN_S = 0.2


def raise_if_cancelled() -> None:
    """Raise CancelledError when this task was told to stop and something in it swallowed that."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def stop(*tasks: asyncio.Task) -> None:
    """Cancel these tasks and wait until they have ended, however they end."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=ASK_AGAIN_S)


async def to_the_end(work: Coroutine[None, None, None]) -> None:
    """Await work that bounds its own time, however often this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    task.result()
