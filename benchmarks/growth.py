"""How the cost of a group grows with actors, length, group size and buffer, as exponents; a table and a plot of it.

    python -m benchmarks.growth [--plot docs/performance/growth.png]

Seconds of the processor per fresh group, of the replay process, of Redis, and of the peers' ends of the wire (encode,
store, fetch, decode) in a run whose actors and learner hardly wait (`benchmarks/simulated.py`), with half a batch
replayed; and the milliseconds of a selection of 64 from buffers that are filled in process. An exponent of 0 is a cost
that does not grow, 1 one that grows as the work does. The plot and the table need `--plot`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure import Figure, run_alone, say
from benchmarks.load import Load
from benchmarks.selection import select, stored
from benchmarks.simulated import simulate
from services.replay.policies import get_policy
from services.replay.rules import Moment

PARTS = ("replay", "redis", "peers")
AXES = {"actors": "actors", "tokens": "tokens of a rollout", "group size": "rollouts of a group"}
Table = dict[str, dict[int, dict[str, float]]]  # axis -> size -> part -> milliseconds


def measure(
    *,
    actors: tuple[int, ...] = (1, 2, 4, 8, 16),
    tokens: tuple[int, ...] = (100, 400, 1600, 8000),
    group_sizes: tuple[int, ...] = (4, 8, 16, 32),
    buffers: tuple[int, ...] = (512, 4096, 32768, 100_000),
    batch: int = 32,
    steps: int = 8,
    plot: str = "",
) -> list[Figure]:
    """An exponent for each part along each axis."""
    base = Load(batch=batch, steps=steps, step_s=0.01, slots=4, actors=4, policy="headroom_drift", select=batch // 2,
                max_lag=1)  # fmt: skip
    table: Table = {
        "actors": {n: cost(replace(base, actors=n, slots=2 * n)) for n in actors},
        "tokens": {n: cost(replace(base, tokens=n)) for n in tokens},
        "group size": {n: cost(replace(base, group_size=n)) for n in group_sizes},
        "buffer": {n: {"selection": selection_ms(n)} for n in buffers},
    }
    if plot:
        draw(table, Path(plot))
        print_table(table, Path(plot).with_suffix(".md"))
    figures = []
    for axis, points in table.items():
        for part in points[min(points)]:
            values = {n: cost[part] for n, cost in points.items()}
            figures.append(Figure(
                name=f"growth over {axis}: {part}", unit="exponent", ours=[exponent(values)], judged="ours",
                at_most=0.2 if axis == "actors" else 1.0,
                note=", ".join(f"{n:,}: {value:.3g} ms" for n, value in values.items()),
            ))  # fmt: skip
    return figures


def cost(load: Load) -> dict[str, float]:
    """Milliseconds of the processor per fresh group, by part."""
    seen = simulate(load)
    say(f"{load.actors} actors, {load.tokens} tokens, {load.group_size} rollouts: {seen.mean_step_s:.3f} s a step")
    return {part: 1e3 * seen.cpu_s[part] / len(seen.trained) for part in PARTS}


def selection_ms(groups: int, rounds: int = 50) -> float:
    """The median of `rounds` selections of 64."""
    buffer, _ = stored(groups)
    rng, policy = np.random.default_rng(0), get_policy("headroom_drift")
    taken = []
    for r in range(rounds):
        selection = select(buffer, policy, 64, Moment(step=r, seed=0), rng)
        taken.append(selection.seconds)
        for id, record in selection.refreshed.items():
            buffer.refresh(id, record.headroom, record.drift)
    say(f"{groups:,} stored groups: {1e3 * np.median(taken):.3f} ms")
    return float(1e3 * np.median(taken))


def exponent(values: dict[int, float]) -> float:
    """The slope of log cost over log size; a cost too small to be counted counts as a microsecond."""
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(np.log(list(values)), np.log(np.maximum(list(values.values()), 1e-3)), 1)[0])


def print_table(table: Table, path: Path) -> None:
    """The same numbers, as Markdown."""
    lines = ["| axis | size | " + " | ".join(f"{part}, ms" for part in PARTS) + " |", "|---|---|" + "---|" * len(PARTS)]
    for axis, points in table.items():
        for n, cost in points.items():
            cells = (
                [f"{cost[part]:.3g}" for part in PARTS] if "replay" in cost else [f"{cost['selection']:.3g}", "", ""]
            )
            lines.append(f"| {axis} | {n:,} | " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n")


def draw(table: Table, path: Path) -> None:
    """One panel per axis, both scales logarithmic."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(11, 7), layout="constrained")
    axes: Any = canvas.subplots(2, 2)
    for panel, (axis, points) in zip(axes.flat, table.items(), strict=True):
        for part in points[min(points)]:
            panel.plot(list(points), [cost[part] for cost in points.values()], marker="o", label=part)
        panel.set(xscale="log", yscale="log", xlabel=AXES.get(axis, "stored groups"),
                  ylabel="ms of a selection" if axis == "buffer" else "ms of the processor per group")  # fmt: skip
        panel.grid(alpha=0.3)
        panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)


if __name__ == "__main__":
    run_alone(measure)
