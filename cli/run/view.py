"""What is known of a running system: built from events and from a look into Redis, drawn by `cli.run.progress`."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from shared.outage import WHAT_TO_DO
from shared.redis_client import SPOKEN

RECENT_STEPS = 10


@dataclass
class RunView:
    """The state that is shown. Times are unix seconds."""

    name: str
    steps: int
    started: float
    step: int = -1  # the last trained one; -1: none yet
    last: dict[str, Any] = field(default_factory=dict)  # the last step event
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    first_eval: dict[str, Any] = field(default_factory=dict)
    last_eval: dict[str, Any] = field(default_factory=dict)
    warning: str = ""
    warning_time: float = 0.0
    waiting_for: list[str] = field(default_factory=list)  # services that are not ready yet
    ready: dict[str, float] = field(default_factory=dict)  # service -> seconds it took
    actors: list[dict[str, Any]] = field(default_factory=list)  # heartbeats
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    memory_kind: str = "PSS"
    phase: str = "starting"  # what it is doing before the first step and after the last
    finished: bool = False  # all of its steps; an earlier end is none when the run was resumed for more

    def update(self, event: dict[str, Any]) -> None:
        """Take an event in."""
        kind = event["kind"]
        if kind == "step":
            self.step = event["step"]
            self.last = event
            self.recent.append(event)
            self.phase = "training"
        elif kind == "eval":
            self.first_eval = self.first_eval or event
            self.last_eval = event
        elif kind in ("warning", "refused"):
            text = event.get("text") or event.get("reason") or ""
            self.warn(f"{event['actor']}: {text}" if kind == "refused" and "actor" in event else text, event["time"])
        elif kind == "finished" and event["step"] >= self.steps:
            self.finished = True

    def warn(self, text: str, now: float) -> None:
        """Show a sentence until the next one."""
        self.warning, self.warning_time = text, now

    def wait_for_primary(self, now: float) -> None:
        """Redis takes no writes, so nobody else can say what the run waits for."""
        self.waiting_for = [SPOKEN["replica"]]
        if self.warning != (text := f"{WHAT_TO_DO['replica']}."):
            self.warn(text, now)

    @property
    def trained(self) -> int:
        """Steps that are done."""
        return self.step + 1

    def seconds_left(self) -> float | None:
        """From the median of the last steps; None before the second: the first includes the start of everything."""
        if len(self.recent) < 2:
            return None
        return median(e.get("seconds") or 0.0 for e in self.recent) * max(self.steps - self.trained, 0)

    def recent_mean(self, key: str) -> float | None:
        """The mean of a field of the last step events that have it."""
        values = [e[key] for e in self.recent if isinstance(e.get(key), int | float)]
        return sum(values) / len(values) if values else None

    def tokens_per_s(self) -> float | None:
        """Sampled tokens a second, over the last steps."""
        return tokens_per_s(self.recent)

    def idle_share(self) -> float | None:
        """The learner's waiting time over its wall time, in the last steps."""
        return idle_share([e.get("learner", {}) for e in self.recent])


def tokens_per_s(steps: Iterable[Mapping[str, Any]]) -> float | None:
    """Of several steps together: after an outage two can be told within a millisecond, and one's rate says nothing."""
    timed = [(step.get("tokens_per_s"), step.get("seconds")) for step in steps]
    known = [(rate, seconds) for rate, seconds in timed if rate is not None and seconds is not None]
    whole = sum(seconds for _, seconds in known)
    return sum(rate * seconds for rate, seconds in known) / whole if whole else None


LEARNER_PARTS = ("wait_s", "scan_s", "fetch_s", "reference_s", "train_s", "publish_s", "checkpoint_s")


def idle_share(steps: Sequence[Mapping[str, float]]) -> float | None:
    """wait_s over the learner's wall time, from the metrics of its steps; None where nothing was measured."""
    wall = sum(m.get("step_s") or sum(m.get(part) or 0.0 for part in LEARNER_PARTS) for m in steps)
    return sum(m.get("wait_s") or 0.0 for m in steps) / wall if wall > 0 else None
