"""The steps of the run as the replay window shows them, read from the bounded `events` stream when somebody asks.

The stream is read backwards, from its end to the newest record that was seen before, or until enough steps are there;
so a page that is opened costs one walk, a page that stays open one small read a step, and no page nothing.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio

from shared import events
from shared.streams import FIELD, Keys

STEPS_KEPT = 500
NOTICES_KEPT = 20
_AT_ONCE = 100  # entries of one read; a rollout among them takes up to 8 kB
_LOOK_S = 0.5  # looks of several pages within this time are one
_ROLLOUT = b'{"kind":"rollout"'  # passed over unread: the longest and the most frequent
_NOTICES = ("warning", "refused", "resumed", "finished")

COLUMNS = [
    "step",
    "seconds",
    "tau",
    "acceptance",
    "scanned",
    "accepted",
    "replay_groups",
    "fresh_groups",
    "age_mean",
    "lag_mean",
    "lag_max",
    "headroom_mean",
    "drift_mean",
    "reward_mean",
    "scan_exposed_s",
    "scan_hidden_s",
    "selection_ms",
    "tokens_per_s",
    "buffer_groups",
]
LEARNER_COLUMNS = ["wait_s", "step_s", "replay_kl", "engine_gap", "engine_gap_limit", "entropy"]


class History:
    """The last steps, evaluations and notices. `tag` changes with every new record."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._keys, self._clock = client, keys, clock
        self._steps: dict[int, dict[str, Any]] = {}
        self._evals: dict[int, dict[str, Any]] = {}
        self._notices: list[dict[str, Any]] = []
        self.planned: int | None = None  # steps of the whole run
        self._newest: str | None = None
        self._looked = float("-inf")
        self._lock = asyncio.Lock()

    @property
    def tag(self) -> str:
        """The id of the newest record."""
        return self._newest or "0-0"

    async def look(self) -> None:
        """Read what is new. Raises RedisError."""
        async with self._lock:
            if self._clock() - self._looked < _LOOK_S:
                return
            for record in await self._new_records():
                self._take(record)
            self._looked = self._clock()

    def since(self, step: int) -> dict[str, Any]:
        """The steps behind `step` as columns, with all evaluations and notices that are kept."""
        steps = [self._steps[s] for s in sorted(self._steps) if s > step]
        columns: dict[str, list] = {name: [_short(s.get(name)) for s in steps] for name in COLUMNS}
        learners = [s.get("learner", {}) for s in steps]
        columns |= {name: [_short(learner.get(name)) for learner in learners] for name in LEARNER_COLUMNS}
        columns["age_max"] = [max(s.get("ages", []), default=None) for s in steps]
        evals = [{"round": r, "em": e.get("em"), "n": e.get("n")} for r, e in sorted(self._evals.items())]
        return {"tag": self.tag, "columns": columns, "evals": evals, "notices": self._notices}

    async def _new_records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        first, steps, newest = "+", 0, self._newest
        oldest = self._newest or "-"
        while steps < STEPS_KEPT:
            reply: Any = await self._client.xrevrange(self._keys.events, first, oldest, count=_AT_ONCE)
            if reply and first == "+":
                newest = reply[0][0].decode()
            met = bool(reply) and reply[-1][0].decode() == self._newest
            for id, fields in reply[: len(reply) - met]:
                if not fields.get(FIELD, b"").startswith(_ROLLOUT):
                    found += [record for _, record in events.parse([(id, fields)])]
                    steps += found[-1]["kind"] == "step"
            if met or (len(reply) < _AT_ONCE and oldest == "-"):
                break
            if len(reply) < _AT_ONCE:
                oldest = "-"  # the newest of before is gone: trimmed, or the server was emptied and ids may go back
            if reply:
                first = f"({reply[-1][0].decode()}"
        self._newest = newest  # at the end: a walk that fails is taken again
        return found[::-1]

    def _take(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "step":
            step = record["step"]
            for void in [s for s in self._steps if s >= step]:  # trained again after the server went back in time
                del self._steps[void]
            self._steps[step] = record
            self.planned = record.get("steps")
            for old in sorted(self._steps)[:-STEPS_KEPT]:
                del self._steps[old]
        elif kind == "eval":
            self._evals[record["round"]] = record
        elif kind in _NOTICES:
            text = record.get("text") or record.get("reason") or ""
            who = record.get("actor") or record.get("service") or ""
            notice = {"kind": kind, "time": record["time"], "who": who, "text": text}
            if notice not in self._notices:  # it may be read again
                self._notices = [*self._notices, notice][-NOTICES_KEPT:]


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
