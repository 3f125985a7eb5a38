"""What goes wrong with single rollouts, told now and then with its count: each is masked out, and nobody would know."""

import time
from collections.abc import Callable

TELL_EVERY_S = 60.0
SENTENCES = {
    "environment": "the environment did not answer {n} rollouts, which are masked out and never scored: see env.url",
    "index": "{n} tasks were handed back, since the retriever did not say what it serves: see env.url",
    "slow": "{n} requests to the retriever took over a quarter of env.timeout_s, after which rollouts are masked out",
    "reward": "the reward of {n} rollouts failed, which are masked out",
    "deadline": "rollout.deadline_s cut {n} rollouts, which are masked out: the longest answers are lost to training",
}


class Troubles:
    """Counts by kind (a key of SENTENCES) since the last word; what is noted from several threads may come late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = dict.fromkeys(SENTENCES, 0)
        self._last: dict[str, str] = {}
        self._next = dict.fromkeys(SENTENCES, 0.0)

    def note(self, kind: str, rollouts: int, how: str = "") -> None:
        """So many more."""
        self._counts[kind] += rollouts
        if how:
            self._last[kind] = how

    def told(self) -> list[str]:
        """The sentences that are due."""
        due = [kind for kind, n in self._counts.items() if n and self._clock() >= self._next[kind]]
        said = []
        for kind in due:
            last = f"; the last one {self._last[kind]}" if kind in self._last else ""
            said.append(f"{SENTENCES[kind].format(n=self._counts[kind])}{last}.")
            self._counts[kind], self._next[kind] = 0, self._clock() + TELL_EVERY_S
        return said


TROUBLES = Troubles()  # of this process, as its metrics are
