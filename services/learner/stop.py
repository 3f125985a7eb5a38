"""Leaving on SIGTERM or SIGINT: at the next safe point, and in any case within a few seconds.

Nothing is half-written whenever the process ends: weights and checkpoints are written aside and renamed, and what
belongs together in Redis goes in one transaction.
"""

import logging
import os
import signal
import threading
from typing import NoReturn

log = logging.getLogger("headrace")

PATIENCE_S = 4.0


class Stopped(Exception):
    """Raised at a safe point after a stop was asked for."""


class Stop:
    """Asked between micro-batches and while waiting."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def on_signals(self) -> None:
        """Take SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask())

    def ask(self) -> None:
        """Ask for a stop; with no safe point in time (one long kernel, a silent Redis) the process ends anyway."""
        if not self._asked.is_set():
            self._asked.set()
            guard = threading.Timer(PATIENCE_S, _leave_unfinished)
            guard.daemon = True
            guard.start()

    def check(self) -> None:
        """A safe point."""
        if self._asked.is_set():
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Sleep, or be stopped."""
        self._asked.wait(seconds)
        self.check()


def leave(status: int = 0) -> NoReturn:
    """End the process now: taking torch apart in good order costs seconds on a busy machine, and gains nothing."""
    logging.shutdown()
    os._exit(status)


def _leave_unfinished() -> None:
    log.warning("no safe point within %g s of the signal: leaving; every file is whole", PATIENCE_S)
    leave()
