"""What nobody reports: tasks whose entry is gone from the stream, silent actors, waits that have become too long.

A task is answered by a group, whose arrival takes it out of the state, or it is in the `tasks` stream. One that is
neither, twice in a row, was lost on the way (an actor refused its entry, the server lost its last second): it is tried
again.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgspec
import redis.asyncio
from redis.exceptions import NoPermissionError

from services.replay.adaptive import STARVING
from services.replay.silent import Silent
from services.replay.state import State
from shared.gpu_lease import mark_of
from shared.heard import Heard
from shared.messages import Task
from shared.only_one import idle_s
from shared.streams import FIELD, Keys
from shared.waiting import START_S, Usual

LONG_WAIT_S = 60.0
ALIKE_STEPS = 5
PAGE = 256  # entries of the tasks stream that are read at once
CLOGGED_AGE, CLOGGED_STEPS = 8.0, 5
SHUT_STEPS, SHUT_SCANS = 5, 20  # of 20 groups none passes by chance once in 26 times where STARVING pass


class Watch:
    """Looks now and then; what it found waits here for the worker's next transaction."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self.client, self.keys, self._clock = client, keys, clock
        self._missing: set[tuple[str, int]] = set()  # (task, attempt) at the last look
        self._vanished: list[tuple[str, int]] = []
        self._warnings: list[str] = []
        self._waits_for, self._since, self._warned = "", self._clock(), False
        self._clogged, self._alike, self._unstored = 0, 0, 0  # steps in a row
        self._shut, self._shut_scans, self._tau = 0, 0, 0.0  # as above; groups in them; the last step's gate
        self._told_gate, self._stays_shut = False, False
        self._steps, self._under_way = Usual(LONG_WAIT_S), False  # a step was trained
        self.actors = Silent(client, keys)
        self.learner = Heard("learner", clock)

    def batch(self, stats: dict[str, Any], capacity: int, stores_mixed: bool = True, gated: bool = True) -> None:
        """A batch was made: what of it is of no use when it stays like that is said, once.

        stores_mixed: whether the policy stores the groups with both right and wrong rollouts, and no others.
        gated: whether it has a gate on Drift.
        """
        self._look_for_differences(stats, stores_mixed)
        if gated and stats["scanned"]:
            self._look_at_gate(stats)
        # old groups of high cached Headroom on top of the order shut replay off
        clogged = stats["scanned"] and stats["acceptance"] < STARVING
        clogged = clogged and stats["scanned_age_mean"] > CLOGGED_AGE and not self._stays_shut
        self._clogged = self._clogged + 1 if clogged else 0
        if self._clogged == CLOGGED_STEPS:
            self._told_gate = True
            age = stats["scanned_age_mean"]
            self._warnings.append(
                f"for {CLOGGED_STEPS} steps fewer than {STARVING:.0%} of the scanned groups were accepted, "
                f"and on average they were {age:.0f} steps old: replay.capacity = {capacity} keeps groups that the "
                "policy has left behind; 2 to 4 times learner.batch is the useful range."
            )

    def _look_at_gate(self, stats: dict[str, Any]) -> None:
        """Of young groups none passes, said once in a run. Where they are old, more of them may be `clogged`."""
        tau, age, drift = stats["tau"], stats["scanned_age_mean"] or 0.0, stats["scanned_drift_median"]
        opens, self._tau = tau > self._tau > 0, tau  # an adaptive gate that goes on opening gets its time
        self._stays_shut &= not stats["accepted"]
        shut = not (stats["accepted"] or opens or age > CLOGGED_AGE)
        self._shut, self._shut_scans = (self._shut + 1, self._shut_scans + stats["scanned"]) if shut else (0, 0)
        if self._shut < SHUT_STEPS or self._shut_scans < SHUT_SCANS or self._told_gate:
            return
        self._told_gate = self._stays_shut = True
        self._warnings.append(
            f"for {self._shut} steps nothing was replayed: none of {self._shut_scans} scanned groups passed the gate. "
            f"Their median Drift is {drift:.2g} at {age:.0f} steps of age, and tau is {tau:.2g}: replay.tau = "
            f"{drift:.2g} lets half of them through, and `headrace tau RUN_DIR` shows what other values do. Where "
            "Drift was lower before, a lower learner.lr is the remedy."
        )

    def _look_for_differences(self, stats: dict[str, Any], stores_mixed: bool) -> None:
        """Without right and wrong among its rollouts a group has an advantage only where rewards are graded."""
        none_mixed = stats["mixed_groups"] == stats["replay_groups"] == 0
        graded = stats["spread_groups"] > 0
        self._alike = self._alike + 1 if none_mixed and not graded else 0
        self._unstored = self._unstored + 1 if none_mixed and graded and stores_mixed else 0
        right = stats["correct_share"] or 0.0
        none = f"for {ALIKE_STEPS} steps no group had both right and wrong rollouts ({right:.0%} are right), so "
        more = "A larger rollout.group_size or temperature makes them differ more."
        if self._alike == ALIKE_STEPS:
            self._warnings.append(
                f"{none}there was nothing to learn and nothing to replay: read some in the run's window. Where none is "
                "right, look at env.prompt, the tags, the retriever and reward.kind; where all are, take harder "
                f"questions. {more}"
            )
        if self._unstored == ALIKE_STEPS:
            self._warnings.append(
                f"{none}there is nothing to replay: their rewards differ and are trained on, and only groups with both "
                f"are stored. {more}"
            )

    def trained(self, step: int, seconds: float) -> None:
        """A step was trained, so long after the one before."""
        self._steps.took(step, seconds)
        self._under_way = True

    def waits_for(self, what: str, happened: bool) -> None:
        """The worker says what it waits for now, and whether it has filed anything: then the clock starts again."""
        if happened or what != self._waits_for:
            self._waits_for, self._since, self._warned = what, self._clock(), False

    def waiting(self) -> tuple[str, float]:
        """What is waited for, and for how many seconds."""
        return self._waits_for, self._clock() - self._since if self._waits_for else 0.0

    @property
    def limit_s(self) -> float:
        """How long nothing may happen, in seconds, before that is said: by what the run's own steps take."""
        return self._steps.limit_s if self._under_way else START_S

    async def look(self, state: State) -> bool:
        """Compare the tasks with the stream and the clock with its limit; True when there is something to act on."""
        there = await self._in_stream()
        missing = {(task.id, task.attempt) for task in state.tasks.values()} - there
        unread = await self.client.xlen(self.keys.groups)  # among them may be their answers
        self._vanished = [] if unread else sorted(missing & self._missing)
        self._missing = missing - set(self._vanished)
        silent = await self.actors.look()
        self._warnings += silent
        await self._look_for_learner(state.counters.finished)
        what, seconds = self.waiting()
        if seconds > self.limit_s and not self._warned:
            self._warned = True
            self._warnings.append(f"nothing has happened for {seconds:.0f} s; waiting for {what}.")
        return bool(self._vanished or self._warnings)

    async def _look_for_learner(self, finished: bool) -> None:
        if finished:  # it leaves, and nobody misses it
            self.learner = Heard("learner", self._clock)
            return
        with suppress(NoPermissionError):
            connected = cast(Any, await self.client.client_list())
            idle = idle_s(connected, self.keys.run, "learner", self.client.get_connection_kwargs())
            if idle is None and not self.learner.was_heard and await self.client.exists(mark_of(self.keys.run)):
                self.learner = Heard("learner", self._clock)  # torchrun started it: it speaks by its mark alone
                return
            if said := self.learner.take(idle):
                self._warnings.append(said)

    async def _in_stream(self) -> set[tuple[str, int]]:
        """The tasks and their attempts that wait or are with actors, read in pages: replay does other things between.

        One that is answered meanwhile is in the state no more, or its answer is unread.
        """
        found: set[tuple[str, int]] = set()
        first = "-"
        while page := cast(Any, await self.client.xrange(self.keys.tasks, min=first, count=PAGE)):
            found |= {_key(fields.get(FIELD, b"")) for _, fields in page}
            first = f"({page[-1][0].decode()}"
        return found

    def vanished(self, state: State) -> list[Task]:
        """The tasks that are lost and still wanted; each is given out once."""
        found, self._vanished = self._vanished, []
        return [task for id, attempt in found if (task := state.tasks.get(id)) and task.attempt == attempt]

    def tell(self, text: str) -> None:
        """One more sentence."""
        self._warnings.append(text)

    def warnings(self) -> list[str]:
        """Sentences for people; each is given out once."""
        found, self._warnings = self._warnings, []
        return found


class _Named(msgspec.Struct):
    """As much of a task as is looked at; actors check the rest."""

    id: str
    attempt: int


_named = msgspec.msgpack.Decoder(_Named)


def _key(data: bytes) -> tuple[str, int]:
    try:
        task = _named.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", 0
    return task.id, task.attempt
