"""Choosing the replayed groups of one step (docs/method.md, section 3, steps 2 to 4), pure but for its scans.

    order --> next scan --> records --> gate --> ... --> done: K accepted, or the end

The order is the one at the start of the step: refreshed scores are collected here and cached by the caller with its
batch, so they never change the order of the step they came from. A request never holds more groups than are still
wanted; therefore no group behind the K-th accepted one is ever scanned.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.counterfactual import Counterfactual
from services.replay.policies import Moment, Policy
from shared.config import Config
from shared.messages import Part, Record

AHEAD = 4  # times the groups that are asked for


@dataclass
class Selection:
    """One step's selection. `wanted` is K; groups in it are ids, best first."""

    policy: Policy
    buffer: Buffer
    wanted: int
    tau: float
    chunk: int
    moment: Moment
    group_size: int = 1  # K groups are K times as many for a policy of single rollouts
    parts: dict[str, Part] = field(default_factory=dict)  # of accepted groups that are not used whole
    accepted: list[str] = field(default_factory=list)
    refreshed: dict[str, Record] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    scanned: int = 0
    seconds: float = 0.0  # spent here, in this process
    scan_seconds: float = 0.0  # spent by the learner
    done: bool = False
    counterfactual: Counterfactual | None = None  # what `naive` would have picked, where the run asks for it
    _position: int = 0  # how far into the order the requests have got
    _order: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))  # slots, as far as asked for
    _asked: int = 0
    _request: list[str] = field(default_factory=list)

    def next_scan(self) -> list[str]:
        """The ids to scan next; empty when the selection is done (a policy that scans nothing is done at once)."""
        began = time.perf_counter()
        if self.policy.rollouts is not None:
            chosen = self.policy.rollouts(self.buffer, self.wanted * self.group_size, self.moment)
            self.accepted, self.parts = list(chosen), {id: Part(rollouts=which) for id, which in chosen.items()}
            self.done = True
            self.seconds += time.perf_counter() - began
            return []
        need = self.wanted - len(self.accepted)
        take = need if self.policy.accepts is None else min(need, self.chunk)
        ids = self._next_in_order(take)
        self._position += len(ids)
        if self.policy.accepts is None:
            self.accepted, ids = ids, []
        self.done = not ids
        self._request = ids
        self.seconds += time.perf_counter() - began
        return ids

    def _next_in_order(self, count: int) -> list[str]:
        """The next groups of the order, which is worked out several requests ahead where scores are scanned."""
        end = self._position + count
        if end > self._asked:
            self._asked = end if self.policy.accepts is None else AHEAD * max(end, self.wanted)
            self._order = self.policy.order(self.buffer, self._asked, self.moment)
        return self.buffer.ids(self._order[self._position : end])

    def take(self, records: list[Record], seconds: float) -> None:
        """Gate one answered scan. A group without a usable record (its payload is gone or bad) is `unusable`."""
        assert self.policy.accepts is not None
        began = time.perf_counter()
        answered = {record.id: record for record in records}
        for id in self._request:
            record = answered.get(id)
            if record is None or not record.measured:
                self.unusable.append(id)
                continue
            self.scanned += 1
            self.refreshed[id] = record
            if self.policy.accepts(record, self.tau):
                self.accepted.append(id)
        self._request = []
        self.done = len(self.accepted) >= self.wanted
        self.scan_seconds += seconds
        self.seconds += time.perf_counter() - began


def groups_wanted(policy: Policy, config: Config) -> int:
    """K. A policy that only replaces fresh groups may replace them all, unless replay.select says otherwise."""
    if policy.again is not None and policy.again.joined:
        return config.replay.capacity  # all there is of the prompts that are asked
    if policy.replaces is not None and config.replay.select == 0:
        return config.learner.batch
    return config.replay_groups


def whole_units(accepted: list[str], unit: int) -> list[str]:
    """Accepted groups cut from the low-priority tail to a multiple of `unit` (docs/method.md, section 3, step 4)."""
    return accepted[: len(accepted) - len(accepted) % unit]
