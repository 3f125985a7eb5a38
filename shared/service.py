"""What every entry point does: log to stderr, turn a UserError into one sentence and status 2, leave on SIGTERM
in any case, before whoever sent it loses patience.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress

from shared.cancellation import stop
from shared.config import Config, load_service_config
from shared.errors import UserError
from shared.told_to_stop import when_told_to_stop

log = logging.getLogger("headrace")

LEAVE_S = 8.0  # a thread whose call does not return, or a loop that is kept by one, must not keep the process

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def set_up_logging(service: str) -> None:
    """One line per record on stderr; HEADRACE_LOG sets the level. Raises UserError for one that there is not."""
    level = os.environ.get("HEADRACE_LOG", "INFO").upper()
    if level not in LEVELS:
        raise UserError(f"HEADRACE_LOG = '{level}' is no level: set it to one of {', '.join(LEVELS)}.")
    logging.basicConfig(
        level=logging.WARNING, format=f"%(asctime)s {service} %(levelname)s %(message)s", stream=sys.stderr
    )
    log.setLevel(level)


def run_service(service: str, serve: Callable[[Config], Coroutine[None, None, None]]) -> None:
    """Load the configuration and run an asynchronous service until it returns or SIGTERM / SIGINT cancels it."""
    main(service, lambda config: asyncio.run(_until_signalled(serve(config))))


def main(service: str, serve: Callable[[Config], None]) -> None:
    """Load the configuration and run a plain service."""
    try:
        set_up_logging(service)
        serve(load_service_config())
    except (UserError, BaseExceptionGroup) as group:
        error = first_error(group)
        if not isinstance(error, UserError):
            raise
        print(f"{service}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def first_error(error: BaseException) -> BaseException:
    """The first leaf of a group of errors: what ended a TaskGroup."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _leave_unfinished() -> None:
    log.warning("not ended %g s after the signal: leaving; every file is whole", LEAVE_S)
    os._exit(0)


async def _until_signalled(work: Coroutine[None, None, None]) -> None:
    task, told_to_stop, loop = asyncio.ensure_future(work), asyncio.Event(), asyncio.get_running_loop()

    def stop_now() -> None:
        guard = threading.Timer(LEAVE_S, _leave_unfinished)
        guard.daemon = True
        guard.start()
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(told_to_stop.set)

    when_told_to_stop(stop_now)
    waiting = asyncio.ensure_future(told_to_stop.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()
        return
    await stop(task)
    log.info("stopped")
