"""Where a learner's time goes: seconds by phase since the last step ended."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES: tuple[str, ...] = ("wait", "scan", "fetch", "reference", "train", "publish", "checkpoint")


class Clock:
    """Phases do not overlap; what is in none of them is in `step_s` only."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - start

    def seconds(self, phase: str) -> float:
        """Of the phase, so far."""
        return self._seconds[phase]

    def lap(self) -> dict[str, float]:
        """`{phase}_s` for every phase and `step_s`, the whole time since the last lap; starts anew."""
        now = time.perf_counter()
        out = {f"{phase}_s": seconds for phase, seconds in self._seconds.items()} | {"step_s": now - self._began}
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._began = now
        return out
