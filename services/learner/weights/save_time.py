"""How long a checkpoint takes to write, as measured: what a stop asks before it begins one."""

import time
from collections.abc import Callable

SPREAD = 1.5  # the next one may meet a busier disk
SYNC = 2.0  # of the time that files take to write without waiting for the disk, as versions are written


def timed(write: Callable[[], object]) -> Callable[[], float]:
    """`write`, whose result is its seconds: of the try that succeeds, where it is made again until there is room."""

    def measured() -> float:
        began = time.monotonic()
        write()
        return time.monotonic() - began

    return measured


class SaveTime:
    """The last checkpoint's time; before the first, that of the published weights, byte for byte."""

    def __init__(self, checkpoint_bytes: int) -> None:
        self._bytes = checkpoint_bytes
        self._published_s = self._saved_s = float("inf")

    def published(self, seconds: float, size: int) -> None:
        """A version of `size` bytes was written."""
        self._published_s = SYNC * seconds * self._bytes / max(size, 1)

    def saved(self, seconds: float) -> None:
        """A checkpoint was written."""
        self._saved_s = seconds

    @property
    def expected_s(self) -> float:
        """Of the next checkpoint, rather too long than too short; infinite before anything was written."""
        measured = self._saved_s if self._saved_s < float("inf") else self._published_s
        return SPREAD * measured
