"""What a benchmark returns, and how a file of this folder runs by itself.

A benchmark is a module here with `measure(*, size=default, ...) -> list[Figure]`. Its arguments, all by keyword and
with literal defaults, are its sizes; the first line of its docstring is what `headrace bench --list` says. Each runs in
a process of its own, so that one's memory, threads and caches are not another's.
"""

import argparse
import inspect
import json
import statistics
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

_STARTED = time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number to hold against a target.

    ours, peer: a measurement per repetition, in `unit`; repetition i of both was made side by side. No `peer`: there is
        nothing to divide by.
    against: what `peer` is.
    judged: whether the target is for ours / peer or for ours itself.
    """

    name: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float] = ()
    against: str = ""
    judged: Literal["ratio", "ours"] = "ratio"
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        assert self.ours and (not self.peer or len(self.peer) == len(self.ours)), f"{self.name}: repetitions differ"
        assert self.peer or self.judged == "ours", f"{self.name}: a ratio to nothing"

    @property
    def repetitions(self) -> int:
        """How often it was measured."""
        return len(self.ours)

    @property
    def ratios(self) -> list[float]:
        """ours / peer of each repetition; empty without a peer."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)] if self.peer else []

    @property
    def ratio(self) -> float | None:
        """Their median."""
        return statistics.median(self.ratios) if self.peer else None

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest of what is judged, over the repetitions."""
        judged = self.ratios if self.judged == "ratio" else self.ours
        return min(judged), max(judged)

    @property
    def met(self) -> bool | None:
        """Whether the median is within the target; None without a target."""
        value = statistics.median(self.ratios if self.judged == "ratio" else self.ours)
        if self.at_most is not None:
            return value <= self.at_most
        return value >= self.at_least if self.at_least is not None else None

    def record(self) -> dict[str, Any]:
        """For JSON: the measurements and what follows from them."""
        medians = {
            "median": statistics.median(self.ours),
            "peer_median": statistics.median(self.peer or [float("nan")]),
        }
        derived = {"ratio": self.ratio, "low": self.spread[0], "high": self.spread[1], "repetitions": self.repetitions}
        return asdict(self) | (medians if self.peer else {"median": medians["median"]}) | derived | {"met": self.met}


def figure_of(record: dict[str, Any]) -> Figure:
    """The figure that `record()` was made from."""
    return Figure(**{name: record[name] for name in Figure.__dataclass_fields__})


def say(text: str) -> None:
    """A line of progress, on standard error."""
    print(f"  {time.monotonic() - _STARTED:6.1f} s  {text}", file=sys.stderr, flush=True)


def target(figure: Figure) -> str:
    """The target in words."""
    unit = "x" if figure.judged == "ratio" else f" {figure.unit}"
    if figure.at_most is not None:
        return f"<= {shown(figure.at_most)}{unit}"
    return f">= {shown(figure.at_least)}{unit}" if figure.at_least is not None else ""


def shown(value: float) -> str:
    """Three significant digits, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def run_alone(measure: Callable[..., list[Figure]]) -> None:
    """`python -m benchmarks.NAME [--SIZE VALUE ...] [--json]`: measure, and print a line per figure or JSON."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--json", action="store_true")
    for size in inspect.signature(measure).parameters.values():
        kind = type(size.default) if isinstance(size.default, int | float | str) else literal_eval
        parser.add_argument(f"--{size.name}", type=kind, default=size.default, help=f"({size.default})")
    sizes = vars(parser.parse_args())
    as_json = sizes.pop("json")
    figures = measure(**sizes)
    if as_json:
        json.dump([figure.record() for figure in figures], sys.stdout)
        return
    for figure in figures:
        print(line(figure))


def line(figure: Figure) -> str:
    """A figure in a line, and its note in the next."""
    text = f"{figure.name}: {shown(statistics.median(figure.ours))} {figure.unit}"
    if figure.peer:
        text += f", {figure.against} {shown(statistics.median(figure.peer))}, ratio {shown(figure.ratio or 0.0)}"
    low, high = figure.spread
    text += f" ({shown(low)} to {shown(high)}, {figure.repetitions} times)"
    if goal := target(figure):
        text += f", target {goal}: {'met' if figure.met else 'missed'}"
    return text + (f"\n  {figure.note}" if figure.note else "")


def rates(work: float, seconds: Iterable[float]) -> list[float]:
    """Work per second of each repetition."""
    return [work / s for s in seconds]
