"""A made load: how long groups and steps take, and what the admission rule alone would make of it.

Lengths are lognormal and cut at a budget, as those of rollouts are. `ideal` plays the same load with the same rule and
no cost of anything else: what a run of real processes takes above it is theirs, what it takes itself is the rule's.
"""

import heapq
import math
import random
from dataclasses import dataclass
from functools import cached_property

from services.replay.admission import Fresh, choose_fresh, tasks_to_issue

WARM_UP = 3  # steps before the pipeline is full, which are left out


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is simulated. Times are for a batch, or a group, of mean length."""

    batch: int = 32  # b
    slots: int = 4  # groups rolled out at once, over all actors
    actors: int = 2
    steps: int = 20  # that are measured
    step_s: float = 1.0  # training b groups
    capacity: float = 1.1  # groups that the slots make in `step_s`, over b
    max_lag: int = 1
    sigma: float = 0.8  # of the logarithm of a group's length
    longest: float = 6.0  # the budget, in mean lengths
    group_size: int = 8
    tokens: int = 200  # sampled in a rollout of mean length
    policy: str = "none"
    select: int = 0  # r
    stored: int = 0  # capacity of the buffer; 0: 3 b
    scan_share: float = 1 / 3  # a forward, of what training a group takes
    acceptance: float = 0.4  # the share of scanned groups that pass the gate
    seed: int = 0

    @property
    def group_s(self) -> float:
        """Seconds in which a group of mean length is rolled out."""
        return self.slots * self.step_s / (self.capacity * self.batch)

    def length(self, number: int) -> float:
        """The length of task `number`, in mean lengths."""
        return self._raw(number) * self._scale

    def train_s(self, number: int) -> float:
        """Seconds for which it is trained."""
        return self.length(number) * self.step_s / self.batch

    def _raw(self, number: int) -> float:
        normal = random.Random(self.seed * 1_000_003 + number).gauss(0, 1)
        return min(math.exp(self.sigma * normal), self.longest * math.exp(self.sigma**2 / 2))

    @cached_property
    def _scale(self) -> float:
        """So that the tasks of this very run have the mean 1."""
        n = (self.steps + WARM_UP + self.max_lag + 1) * self.batch
        return n / sum(self._raw(i) for i in range(n))


def ideal(load: Load) -> tuple[float, float]:
    """(share of the time in which the learner is idle, seconds per step) where nothing costs but the work itself."""
    last = WARM_UP + load.steps
    now = idle = idle_since = began = 0.0
    version = issued = 0
    queue: list[int] = []
    due: dict[int, int] = {}  # of every open task
    arrived: set[int] = set()
    batch: list[int] = []
    ends: list[tuple[float, int]] = []  # (when, task; -1: the step)
    free = load.slots
    while True:
        for _ in range(tasks_to_issue(len(due), version, load.batch, load.max_lag, last + load.max_lag + 1)):
            queue.append(issued)
            due[issued] = version + load.max_lag
            issued += 1
        while queue and free:
            task = queue.pop(0)
            heapq.heappush(ends, (now + load.length(task) * load.group_s, task))
            free -= 1
        if not batch:
            here = [Fresh(due[n], n, str(n)) for n in arrived]
            running = [due[n] for n in due if n not in arrived]
            if chosen := choose_fresh(here, running, version, load.batch):
                batch = [fresh.number for fresh in chosen]
                arrived -= set(batch)
                idle += now - idle_since
                heapq.heappush(ends, (now + sum(map(load.train_s, batch)), -1))
        now, task = heapq.heappop(ends)
        if task >= 0:
            arrived.add(task)
            free += 1
            continue
        for n in batch:
            del due[n]
        batch, version, idle_since = [], version + 1, now
        if version == WARM_UP:
            began, idle = now, 0.0
        if version == last:
            return idle / (now - began), (now - began) / load.steps
