"""How long a checkpoint takes to write, as measured: what a stop asks before it begins one."""

SPREAD = 1.5  # the next one may meet a busier disk
SYNC = 2.0  # of the time that files take to write without waiting for the disk, as versions are written


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
