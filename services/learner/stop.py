"""Leaving on SIGTERM or SIGINT: at the next safe point, and in any case before whoever sent it loses patience.

Nothing is half-written whenever the process ends: weights and checkpoints are written aside and renamed, and what
belongs together in Redis goes in one transaction.
"""

import logging
import math
import os
import threading
import time
from typing import NoReturn

from shared.told_to_stop import when_told_to_stop

log = logging.getLogger("headrace")

MARGIN_S = 1.0  # of run.stop_s, between leaving and being killed


class Stopped(Exception):
    """Raised at a safe point after a stop was asked for."""


class Stop:
    """Asked between micro-batches and while waiting."""

    def __init__(self, grace_s: float = 5.0) -> None:
        """`grace_s`: between the signal and the end of all patience, run.stop_s."""
        self._patience_s = grace_s - MARGIN_S
        self._asked = threading.Event()
        self._until = math.inf

    def on_signals(self) -> None:
        """Take SIGTERM and SIGINT."""
        when_told_to_stop(self.ask)

    def ask(self) -> None:
        """Ask for a stop; with no safe point in time (one long kernel, a silent Redis) the process ends anyway."""
        if not self._asked.is_set():
            self._until = time.monotonic() + self._patience_s
            self._asked.set()
            guard = threading.Timer(self._patience_s, _leave_unfinished, [self._patience_s])
            guard.daemon = True
            guard.start()

    @property
    def left_s(self) -> float:
        """Seconds until the process ends anyway."""
        return self._until - time.monotonic()

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


def _leave_unfinished(patience_s: float) -> None:
    log.warning("no safe point within %g s of the signal: leaving; every file is whole", patience_s)
    leave()
