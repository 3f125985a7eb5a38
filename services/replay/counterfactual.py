"""What `naive` would have replayed from the same buffer, measured beside what the policy replays.

Only for people to look at: the cached scores stay as they are, so a run with it chooses what a run without it chooses.
What the selection itself did not scan is scanned after it, a few groups at a time and only while fresh groups are
awaited; when the batch can be sent it is sent, and what is left counts as not measured. At most one such scan, of
CHUNK groups, is ahead of a batch in the learner's queue.

Where `measured` is below 1, the side of `naive` leans towards the groups that the policy scanned as well: for a fair
comparison take the steps in which it is 1.
"""

from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from services.replay.buffer import Buffer, StoredGroup
from services.replay.policies.naive import POLICY as NAIVE
from services.replay.rules import Moment
from shared.messages import Record

CHUNK = 4


class Counterfactual:
    """One step's comparison, begun when its selection is done."""

    def __init__(self, buffer: Buffer, picked: list[str], measured: dict[str, Record], wanted: int) -> None:
        """picked: what the policy accepted, best first; measured: its scans; wanted: K."""
        self.naive = [buffer.row(id) for id in buffer.ids(NAIVE.order(buffer, wanted, Moment(step=0, seed=0)))]
        self.records = dict(measured)
        both = chain.from_iterable(zip_longest(picked, (row.id for row in self.naive)))
        self._left = [id for id in dict.fromkeys(both) if id is not None and id not in measured]

    def next_scan(self) -> list[str]:
        """The ids to scan next; empty when everything has been asked for."""
        ids, self._left = self._left[:CHUNK], self._left[CHUNK:]
        return ids

    def take(self, records: Iterable[Record]) -> None:
        """Keep an answered scan; a group without a usable record stays unmeasured."""
        self.records |= {r.id: r for r in records if r.measured}

    def stats(self, step: int, replayed: list[StoredGroup]) -> dict[str, Any]:
        """Means over the measured groups of either side; `measured` is the share of all groups that were."""
        groups = {row.id for row in (*replayed, *self.naive)}
        return {
            "picked": self._side(step, replayed),
            "naive": self._side(step, self.naive),
            "measured": len(groups & self.records.keys()) / len(groups) if groups else None,
        }

    def _side(self, step: int, rows: list[StoredGroup]) -> dict[str, Any]:
        measured = [self.records[row.id] for row in rows if row.id in self.records]
        return {
            "groups": len(rows),
            "measured": len(measured),
            "headroom": float(np.mean([r.headroom for r in measured])) if measured else None,
            "drift": float(np.mean([r.drift for r in measured])) if measured else None,
            "age": float(np.mean([step - row.step for row in rows])) if rows else None,
        }
