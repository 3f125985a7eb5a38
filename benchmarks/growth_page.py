"""The rows of `benchmarks/growth.py` as exponents, as two tables in Markdown, and as a plot."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

FASTER = 0.1  # an exponent that is more above that of the work is called faster
PASS = "one numpy pass"  # the work of a selection
WORK = {"buffer": "a selection of 64", "actors": "a group", "tokens": "1,000 sampled tokens",
        "group size": "a rollout", "learner": "1,000 tokens read"}  # fmt: skip
SIZES = {"buffer": "stored groups", "actors": "actors", "tokens": "tokens of a rollout",
         "group size": "rollouts of a group", "learner": "tokens of a rollout"}  # fmt: skip
HEAD = """# Growth

Written by `headrace bench growth --size plot={plot}`; [loop.md](loop.md#growth) says what is measured, and why
it grows where it does. Medians of {rounds} rounds, lowest and highest in brackets.

![growth]({plot_name})

## How fast the cost of a unit of work grows

The exponent of a power law through all sizes, and through the two largest. Above {faster} cost grows faster than the
work; the work of a selection is the pass of numpy over its scores, and grows as that does.

| axis | unit of work | part | exponent | of the two largest | faster than the work |
|---|---|---|---|---|---|
"""
HALF = """A token of the learner costs a + b n at n tokens of a rollout: b n, the attention, is as much as all the rest
from about {tokens:,.0f} on."""
Points = dict[int, list[float]]  # size -> milliseconds for a unit of work, one of each round
Table = dict[str, dict[str, Points]]  # axis -> part -> points


def exponents(points: Points) -> list[float]:
    """Of each round: the slope of log cost over log size; 0 for one size. A cost below a microsecond counts as one."""
    rounds = np.maximum(np.array(list(points.values())).T, 1e-3)
    return [float(np.polyfit(np.log(list(points)), np.log(r), 1)[0]) if len(points) > 1 else 0.0 for r in rounds]


def spread(values: Sequence[float]) -> str:
    """Median, lowest and highest."""
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def write_tables(table: Table, path: Path) -> None:
    """Exponents, then every row."""
    rounds = len(next(iter(next(iter(next(iter(table.values())).values())).values())))
    plot = path.with_suffix(".png")
    lines = HEAD.format(plot=plot, plot_name=plot.name, rounds=rounds, faster=FASTER).splitlines()
    for axis, parts in table.items():
        for part, points in parts.items():
            all_sizes, largest = (exponents(dict(list(points.items())[at:])) for at in (0, -2))
            cells = [axis, WORK[axis], part, rounded(all_sizes), rounded(largest), faster(parts, part)]
            lines.append(f"| {' | '.join(cells)} |")
    if learner := table.get("learner"):
        lines += ["", HALF.format(tokens=half_attention(learner["learner"]))]
    for axis, parts in table.items():
        lines += ["", f"## {axis.capitalize()}: ms for {WORK[axis]}", "", f"| {SIZES[axis]} | {' | '.join(parts)} |",
                  "|---" * (1 + len(parts)) + "|"]  # fmt: skip
        for n in next(iter(parts.values())):
            lines.append(f"| {n:,} | {' | '.join(spread(points[n]) for points in parts.values())} |")
    path.write_text("\n".join(lines) + "\n")


def work_exponent(parts: dict[str, Points], sizes: Points) -> float:
    """Of the work at these sizes: that of the numpy pass where there is one, and 0 where cost is for a unit of it."""
    work = {n: values for n, values in parts.get(PASS, {}).items() if n in sizes}
    return median(exponents(work)) if work else 0.0


def faster(parts: dict[str, Points], part: str) -> str:
    """Where its cost grows faster than the work, in words."""
    if part == PASS:
        return "is the work"
    points = parts[part]
    chosen = {"over all": points, "at the end": dict(list(points.items())[-2:])}
    found = [name for name, p in chosen.items() if median(exponents(p)) > work_exponent(parts, p) + FASTER]
    return "**" + " and ".join(found) + "**" if found else "no"


def half_attention(points: Points) -> float:
    """The length n at which b n = a, for the cost a + b n of a token that fits the medians best (relative squares)."""
    if len(points) < 2:
        return float("nan")
    cost = [median(values) for values in points.values()]
    slope, constant = np.polyfit(list(points), cost, 1, w=1 / np.array(cost))
    return float(constant / slope)


def rounded(values: Sequence[float]) -> str:
    """Exponents to two places."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def draw(table: Table, path: Path) -> None:
    """One panel per axis, both scales logarithmic; bars from the lowest to the highest."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    canvas = Canvas(figsize=(15, 8.5), layout="constrained")
    plain = FuncFormatter(lambda value, _: f"{value:,.6g}")
    panels: Any = canvas.subplots(2, 3)
    for panel in panels.flat[len(table) :]:
        panel.set_axis_off()
    for panel, (axis, parts) in zip(panels.flat, table.items(), strict=False):
        for part, points in parts.items():
            middle = np.array([median(values) for values in points.values()])
            low, high = (np.array([pick(values) for values in points.values()]) for pick in (min, max))
            label = f"{part}: n^{median(exponents(points)):.2f}"
            panel.errorbar(list(points), middle, [middle - low, high - middle], marker="o", markersize=4, capsize=4,
                           label=label)  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel=SIZES[axis], ylabel=f"ms for {WORK[axis]}", title=axis)
        panel.xaxis.set_major_locator(FixedLocator(list(next(iter(parts.values())))))
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for scale in (panel.xaxis, panel.yaxis):
            scale.set_major_formatter(plain)
            scale.set_minor_formatter(NullFormatter())
        panel.margins(y=0.25)
        panel.grid(alpha=0.3, which="both")
        panel.legend(fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)
