"""A recording of real actors, played for as many steps as a test wants (made by `record.py`, which says how)."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from shared.messages import GroupHeader, Record
from shared.versions import Version

ATLAS = Path(__file__).parent / "recorded" / "atlas.jsonl.gz"
AGES = 6  # the last steps are kept for the measurements of groups of the steps before


class Recording:
    """The recorded steps again and again: step s is recorded step s mod `length`, its ids and numbers made new.

    A group's Headroom and Drift depend on it and its age: what was measured on it at that age. Where nothing was (the
    recording had evicted it), its last measurement stands in, with the Drift times (age / age then)^2: sqrt(Drift) then
    goes on growing at the same pace. `decimals` rounds both scores, so that ties become the rule.
    """

    def __init__(self, path: Path = ATLAS, decimals: tuple[int, int] | None = None) -> None:
        about, steps, self._fresh = _read(path)
        self.batch, self.group_size, self.length = about["b"], about["G"], about["steps"] - AGES
        self._decimals, self.exact = decimals, decimals is None
        self._born = {h.id: step for step, headers in enumerate(self._fresh) for h in headers}
        self._numbers = 1 + max(h.number for headers in self._fresh for h in headers)
        self._trained: dict[str, list[float]] = {id: n for s in steps for id, n in s["trained"].items()}
        self._scanned: dict[str, dict[int, list[float]]] = {}
        for step, line in enumerate(steps):
            for id, numbers in line["scanned"].items():
                self._scanned.setdefault(id, {})[step - self._born[id]] = numbers

    def fresh(self, step: int) -> list[GroupHeader]:
        """The headers of the groups that step `step` takes, in its batch's order."""
        cycle, recorded = divmod(step, self.length)
        return [self._renamed(header, cycle) for header in self._fresh[recorded]]

    def trained(self, id: str) -> Record:
        """The learner's record of a group that was trained fresh; it brings headroom_ref."""
        numbers = self._trained[id.partition(".")[2]]
        headroom, _ = self._rounded(numbers[4], 0.0)
        return _record(id, headroom, 0.0, numbers)

    def scanned(self, id: str, step: int) -> Record:
        """The learner's record of a group under the weights that `step` begins with."""
        cycle, _, recorded = id.partition(".")
        age = step - int(cycle) * self.length - self._born[recorded]
        assert age > 0, f"group {id} at step {step} is not stored yet"
        measured = self._scanned.get(recorded) or {1: [self._trained[recorded][0], 0.001, 0.0005, 0.3]}
        nearest = age if age in measured else max(measured)
        numbers = measured[nearest]
        return _record(id, *self._rounded(numbers[0], numbers[1] * (age / nearest) ** 2), numbers)

    def _rounded(self, headroom: float, drift: float) -> tuple[float, float]:
        if self._decimals is None:
            return headroom, drift
        return round(headroom, self._decimals[0]), round(drift, self._decimals[1])

    def _renamed(self, header: GroupHeader, cycle: int) -> GroupHeader:
        later = cycle * self.length
        return msgspec.structs.replace(
            header,
            id=f"{cycle}.{header.id}",
            number=header.number + cycle * self._numbers,
            version_min=Version(0, header.version_min.number + later),
            version_max=Version(0, header.version_max.number + later),
        )


@cache
def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[list[GroupHeader]]]:
    """(about it, its steps, their fresh groups); nobody alters them."""
    with gzip.open(path, "rt") as file:
        about, *steps = [json.loads(line) for line in file]
    return about, steps, [[msgspec.convert(h, GroupHeader) for h in step["fresh"]] for step in steps]


def _record(id: str, headroom: float, drift: float, numbers: list[float]) -> Record:
    tokens = 1024  # a power of two: the drift comes back exactly as it was put in
    return Record(
        id=id, tokens=tokens, tokens_positive=512, tokens_negative=512, mean_p_positive=0.5, mean_p_negative=0.5,
        headroom=headroom, sum_d=0.0, sum_d2=drift * tokens, max_abs_d=1.0, k3=numbers[2], dead_share=0.0,
        entropy=numbers[3], headroom_ref=headroom,
    )  # fmt: skip
