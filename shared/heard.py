"""Whether replay hears the learner, and the learner replay: each tells people of the other, which cannot."""

import time
from collections.abc import Callable

from shared.only_one import SILENT_S, Role
from shared.waiting import START_S

_NAMES: dict[Role, str] = {"learner": "the learner", "replay": "replay"}
_LACKING: dict[Role, str] = {"learner": "no step is trained", "replay": "no task is issued and no batch made"}


class Heard:
    """`silent_s`: for how long it has not spoken; 0 while it does, and in the first START_S before it was heard."""

    def __init__(self, role: Role, clock: Callable[[], float] = time.monotonic) -> None:
        self._role: Role = role
        self._clock, self._begun = clock, clock()
        self._last: float | None = None  # when it last spoke
        self._told = False
        self.silent_s = 0.0

    @property
    def was_heard(self) -> bool:
        """Since this was made."""
        return self._last is not None

    def take(self, idle_s: float | None) -> str | None:
        """A look found that it spoke `idle_s` ago; None: it has no connection. Returns a sentence when one is due."""
        now, before = self._clock(), self.silent_s
        if idle_s is not None:
            self._last = now - idle_s
        if self._last is None:
            if now - self._begun < START_S:
                return None
            self._last = self._begun  # it ended before it could be heard, or was never started
        self.silent_s = 0.0 if idle_s is not None and idle_s < SILENT_S else now - self._last
        if self._told and not self.silent_s:
            self._told = False
            return f"{_NAMES[self._role]} reports again after {before:.0f} s."
        if self._told or self.silent_s < SILENT_S:
            return None
        self._told = True
        return stopped(self._role)


def stopped(role: Role) -> str:
    """What people are told."""
    return (
        f"{_NAMES[role]} has stopped reporting (hung, stopped, cut off or ended): {_LACKING[role]} until it is back. "
        "Where it ended, the last lines of its log say why."
    )
