"""Every batch obeys the method (docs/method.md, section 3; the lag bound: docs/design.md, section 7).

    fresh    the b arrived groups of smallest (due, number), none later than max_lag allows
    order    the policy's, of the stored groups (see ORDERS); none passed over but by the gate
    gate     Drift <= tau in the scan that the step rests on
    replay   the first K accepted, cut to whole units; never a group of the same step
    append   only after the step: mixed groups, in order; evict FIFO beyond capacity

What replay stores is followed in a shadow of its own and compared with replay:buffer at each batch. Of `uniform`, whose
order is drawn, the number and the storing are judged. For policies that are not in ORDERS, under `replay.free_refresh`
and `adaptive_tau`, only the lag, one use as fresh and no replay in the same step are.
"""

import math
from dataclasses import dataclass

from cli.chaos.log import Added, Dropped, Fact, Put, Removed
from shared.config import Config
from shared.messages import (
    AGAIN,
    EVAL,
    Batch,
    Cursor,
    GroupHeader,
    Hello,
    Record,
    Result,
    Scan,
    ScanResult,
    Sync,
    Task,
    Trained,
)
from shared.versions import Version


@dataclass
class Stored:
    """A group in the shadow buffer."""

    sequence: int
    headroom: float  # cached
    right: int
    scored: int


def _highest_headroom(group: Stored) -> tuple[float, int]:
    return -group.headroom, group.sequence


def _newest(group: Stored) -> tuple[float, int]:
    return 0.0, -group.sequence


def _most_wrong(group: Stored) -> tuple[float, int]:
    return -(group.scored - group.right) / group.scored, -group.sequence


def _most_varied(group: Stored) -> tuple[float, int]:
    return -group.right * (group.scored - group.right) / group.scored**2, -group.sequence


ORDERS = {  # smallest first
    "headroom_drift": _highest_headroom,
    "headroom_only": _highest_headroom,
    "drift_only": _newest,
    "fail_rate": _most_wrong,
    "variance": _most_varied,
    "naive": _newest,
    "uniform": _newest,
    "none": _newest,
}
GATED = ("headroom_drift", "drift_only", "fail_rate", "variance")
SCANNED = (*GATED, "headroom_only")


@dataclass(frozen=True)
class Arrived:
    """A fresh group that no step has trained, ordered as steps take them."""

    due: int
    number: int
    header: GroupHeader


class BatchesObeyTheMethod:
    """See the module."""

    def __init__(self, config: Config) -> None:
        self.broken: list[str] = []
        self.counts = {"batches": 0, "scanned": 0}
        self._c = config
        self._followed = config.replay.policy in ORDERS and not config.replay.free_refresh
        self._followed &= config.replay.adaptive_tau == 0
        self._gated = config.replay.policy in GATED
        self._step, self._version = 0, Version(-1, 0)
        self._min_version: dict[str, int] = {}  # of each task's last attempt
        self._headers: dict[bytes, GroupHeader] = {}  # not filed yet, by entry
        self._results: dict[bytes, Result] = {}  # not applied yet
        self._arrived: dict[str, Arrived] = {}
        self._known: set[str] = set()  # whose task has ended: a group that comes behind that is none
        self._batches: dict[int, Batch] = {}
        self._stored: dict[str, Stored] = {}
        self._inserted = 0
        self._kind: dict[str, str] = {}  # fingerprints of the stored groups
        self._table: set[str] = set()  # replay:buffer
        self._scan = ""
        self._requested: set[str] = set()
        self._records: dict[str, Record] = {}  # of the selection under way

    def see(self, fact: Fact) -> None:
        """The next fact."""
        match fact:
            case Added("tasks", _, Task() as task):
                self._min_version[task.id] = task.min_version
            case Added("groups", id, GroupHeader() as header):
                self._headers[id] = header
            case Added("results", id, message) if message is not None:
                self._results[id] = message
            case Added("work", _, Scan() as scan):
                self._scan = scan.scan
                self._requested.update(scan.ids)
            case Added("work", _, Sync()):
                self._begin_selection()
            case Added("work", _, Batch() as batch):
                self._batch(batch)
            case Removed("groups", ids):
                for header in [self._headers.pop(id) for id in ids if id in self._headers]:
                    self._file(header)
            case Removed("results", ids):
                for result in [self._results.pop(id) for id in ids if id in self._results]:
                    self._apply(result)
            case Put("buffer", id, _):
                self._table.add(id)
            case Dropped("buffer", id):
                self._table.discard(id)
            case Put("tasks", id, _):
                self._known.discard(id)
            case Dropped("tasks", id):
                self._known.add(id)

    def end(self, finished: bool) -> None:
        """Everything was judged as it came."""

    def _begin_selection(self) -> None:
        self._scan = ""
        self._requested.clear()
        self._records.clear()

    def _file(self, header: GroupHeader) -> None:
        if header.kind == EVAL or not header.usable or header.id in self._known:
            return
        if header.id not in self._min_version:
            return  # of a task whose issue the server has lost: replay drops it
        if header.version_min.number < self._min_version[header.id]:
            return  # of an attempt that was replaced, and older than the one in its place may be
        self._known.add(header.id)
        if self._kind and header.fingerprints != self._kind:
            self._stored.clear()
        self._kind = header.fingerprints
        oldest = min(self._min_version[header.id], header.version_min.number)
        self._arrived[header.id] = Arrived(oldest + self._c.replay.max_lag, header.number, header)

    def _apply(self, result: Result) -> None:
        match result:
            case ScanResult() if result.scan == self._scan and result.version == self._version:
                self._scan = ""
                self._records |= {record.id: record for record in result.records}
            case Hello() if result.version >= self._version:
                if result.version != self._version or result.again:
                    self._begin_selection()
                if result.version.number > self._step:
                    self._skip_to(result.version.number, result.cursor)
                self._version = result.version
            case Trained() if result.version.lineage >= self._version.lineage:
                self._version = max(self._version, result.version)
                if result.step == self._step:
                    self._append(result)

    def _skip_to(self, step: int, cursor: Cursor | None) -> None:
        """The server lost steps: what they used is gone, and what they would have stored was never appended."""
        self._step = step
        used = {id for batch in self._batches.values() for id in batch.fresh}
        left = {id: a for id, a in self._arrived.items() if id not in used and a.header.kind != AGAIN}
        self._arrived = {
            id: arrived
            for id, arrived in left.items()
            if (arrived.number in cursor.untrained if cursor else arrived.due >= step)
        }

    def _append(self, trained: Trained) -> None:
        records = {record.id: record for record in trained.records}
        for id in self._batches[trained.step].fresh if trained.step in self._batches else []:
            arrived = self._arrived.pop(id, None)
            if arrived is None or not arrived.header.mixed or id in trained.rejected:
                continue
            if arrived.header.fingerprints != self._kind:
                continue
            record = records.get(id)
            reference = record.headroom_ref if record is not None else None
            headroom = arrived.header.headroom if reference is None else reference
            right, scored = arrived.header.right, len(arrived.header.scored)
            self._stored[id] = Stored(self._inserted, headroom, right, scored)
            self._inserted += 1
        for id in trained.rejected:
            self._stored.pop(id, None)
        for id in sorted(self._stored, key=lambda id: self._stored[id].sequence)[: -self._c.replay.capacity]:
            del self._stored[id]
        if self._c.replay.policy == "none":
            self._stored.clear()
        self._step += 1
        self._begin_selection()

    def _batch(self, batch: Batch) -> None:
        if self._batches.setdefault(batch.step, batch) is not batch:
            return  # given again, by id: rules.steps
        self.counts["batches"] += 1
        if batch.step != self._step:
            self._say(batch, f"was sent when step {self._step} was the next")
        self._judge_fresh(batch)
        if same := set(batch.replay) & set(batch.fresh):
            self._say(batch, f"replays {min(same)} in the step that it is fresh in")
        if not self._followed:
            return
        self._judge_stored(batch)
        expected = self._select(batch)
        if expected is not None and batch.replay != expected:
            self._say(batch, f"replays {batch.replay}, and order and gate give {expected}")

    def _judge_fresh(self, batch: Batch) -> None:
        b, lag = self._c.learner.batch, self._c.replay.max_lag
        if len(batch.fresh) != b and self._followed:
            self._say(batch, f"has {len(batch.fresh)} fresh groups of {b}")
        for id in batch.fresh:
            if id not in self._arrived:
                self._say(batch, f"takes {id} as fresh, which has not arrived or is trained already")
                continue
            header = self._arrived[id].header
            # tokens after a resume may carry a lower number than their task allows: no bound covers them
            in_one_lineage = header.version_min.lineage == header.version_max.lineage
            if in_one_lineage and batch.step - header.version_min.number > lag:
                self._say(batch, f"trains {id}, which is of version {header.version_min}: more than {lag} behind")
        taken = [self._arrived[id] for id in batch.fresh if id in self._arrived]
        order = [(fresh.due, fresh.number) for fresh in taken]
        left = [(f.due, f.number) for id, f in self._arrived.items() if id not in batch.fresh]
        if self._followed and order and (order != sorted(order) or (left and min(left) < max(order))):
            self._say(batch, "does not take its fresh groups first in, first out")

    def _judge_stored(self, batch: Batch) -> None:
        if foreign := self._table - set(self._stored):
            self._say(batch, f"rests on a buffer with {min(foreign)}, which was never appended or is evicted")
        if missing := set(self._stored) - self._table:
            self._say(batch, f"rests on a buffer without {min(missing)}")

    def _select(self, batch: Batch) -> list[str] | None:
        """The groups that order and gate give; cached scores and unreadable groups are seen to. None: said already."""
        policy, wanted = self._c.replay.policy, self._c.replay_groups
        if policy == "uniform":
            return self._drawn(batch, min(wanted, len(self._stored)))
        scans = policy in SCANNED
        accepted: list[str] = []
        for id in batch.replay:
            if self._gated and (record := self._records.get(id)) and record.drift > self._c.replay.tau:
                self._say(batch, f"replays {id} at a Drift of {record.drift:.2g}, above tau {self._c.replay.tau:g}")
                return None
        for id in self._order():
            if len(accepted) == wanted:
                break
            record = self._records.get(id)
            if not scans:
                accepted.append(id)
            elif record is None and id in self._requested:
                del self._stored[id]  # not readable: discarded, and counted as rejected
            elif record is None:
                self._say(batch, f"passes over {id}, which comes before others in the order, unscanned")
                return None
            elif record.tokens < 1 or not math.isfinite(record.drift + record.headroom):
                del self._stored[id]
            elif not self._gated or record.drift <= self._c.replay.tau:
                accepted.append(id)
        for id, record in self._records.items():
            if id in self._stored:
                self._stored[id].headroom = record.headroom
        self.counts["scanned"] += len(self._records)
        return accepted[: len(accepted) - len(accepted) % self._c.replay.unit]

    def _drawn(self, batch: Batch, number: int) -> list[str] | None:
        """What was drawn, where it is so many stored groups."""
        number -= number % self._c.replay.unit
        if len(batch.replay) == len(set(batch.replay)) == number and set(batch.replay) <= set(self._stored):
            return batch.replay
        self._say(batch, f"replays {batch.replay}, and {number} different stored groups are due")
        return None

    def _order(self) -> list[str]:
        """Best first."""
        key = ORDERS[self._c.replay.policy]
        return sorted(self._stored, key=lambda id: key(self._stored[id]))

    def _say(self, batch: Batch, what: str) -> None:
        self.broken.append(f"the batch of step {batch.step} {what}.")
