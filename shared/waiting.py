"""When a wait is worth a word: after a while, and then less and less often; and which wait is longer than usual."""

import time
from collections.abc import Callable

FIRST_S, LONGEST_S = 15.0, 600.0
RECENT = 8  # steps
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


class Usual:
    """How long each step of a run makes one wait; where this one takes much longer, something may be wrong."""

    def __init__(self, least_s: float) -> None:
        """`least_s`: what is never too long."""
        self._least_s = least_s
        self._longest: dict[int, float] = {}  # of each of the last RECENT steps

    def took(self, step: int, seconds: float) -> None:
        """A wait of this step is over."""
        self._longest[step] = max(seconds, self._longest.pop(step, 0.0))
        if len(self._longest) > RECENT:
            del self._longest[next(iter(self._longest))]

    @property
    def limit_s(self) -> float:
        """Twice the second longest of the last steps, since the longest may have been an outage."""
        known = sorted(self._longest.values())[-2:]
        return max(self._least_s, 2 * known[0] if known else 0.0)
