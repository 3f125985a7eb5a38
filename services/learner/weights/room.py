"""Waiting for room on the disk. Weights and checkpoints are written aside and renamed, so a write may be made again."""

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from services.learner import waits
from services.learner.stop import Stop
from services.learner.talk.patience import patiently
from shared.errors import UserError
from shared.files import FULL, REFUSED
from shared.waiting import LongWait

log = logging.getLogger("headrace")

PROBE_BYTES = 2**20

T = TypeVar("T")


def until_written(stop: Stop, folder: Path, write: Callable[[], T], tell: Callable[[str], None]) -> T:
    """The result of `write`, made again while the disk of `folder` has no room. Raises Stopped meanwhile, and
    UserError where a person must mend the folder first; any other error as it is.

    tell: hears so in a sentence for people, at once and ever less often.
    """
    return patiently(stop, "write", write, _ForRoom(folder, tell))


class _ForRoom:
    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder, self._tell = folder, tell
        self._wait: LongWait | None = None

    def failed(self, error: Exception, what: str) -> None:
        # safetensors and torch put what the system said into errors of their own
        if not is_for_want_of_room(error, self._folder):
            if _number_of(error) not in REFUSED:
                raise error
            raise UserError(
                f"{self._folder} cannot be written ({error}): make it a folder that the learner may write, and resume "
                "the run."
            ) from None
        self._wait = wait = self._wait or LongWait(first_s=0.0)
        waits.DISK.set(wait.seconds)
        if wait.due():
            text = f"no room in {self._folder} since {wait.seconds:.0f} s ({error}): the learner waits, make some."
            log.warning("%s", text)
            self._tell(text)

    def over(self) -> None:
        waits.DISK.set(0)


def is_for_want_of_room(error: Exception, folder: Path) -> bool:
    """By the number of the system's error; where it is not told, by trying."""
    number = _number_of(error)
    return _has_no_room(folder) if number is None else number in FULL


def _number_of(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    told = re.search(r"os error (\d+)", str(error))  # safetensors
    return int(told[1]) if told else None


def _has_no_room(folder: Path) -> bool:
    probe = folder / f".probe.{time.monotonic_ns()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return error.errno in FULL
    finally:
        with suppress(OSError):
            probe.unlink()
    return False
