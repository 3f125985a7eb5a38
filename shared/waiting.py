"""When a long wait is worth a word: after a while, and then less and less often."""

import time
from collections.abc import Callable

FIRST_S, LONGEST_S = 15.0, 600.0
START_S = 180.0  # a run whose services still load their models is nothing to warn of


class LongWait:
    """One wait, begun when this is made."""

    def __init__(self, first_s: float = FIRST_S, clock: Callable[[], float] = time.monotonic) -> None:
        """`first_s`: after how long it is told first; then 15 s, 30 s, 60 s ... later, at most LONGEST_S apart."""
        self._clock, self._since, self._next = clock, clock(), first_s

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._since

    def due(self) -> bool:
        """Whether it is time to tell; true once each time."""
        waited = self.seconds
        if waited < self._next:
            return False
        self._next = waited + min(max(waited, FIRST_S), LONGEST_S)
        return True
