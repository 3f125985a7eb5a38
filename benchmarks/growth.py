"""How the cost of a unit of work grows with buffer, actors, length and group size, as exponents; a table and a plot.

    python -m benchmarks.growth [--rounds 5] [--plot docs/performance/growth.png]

    axis         unit of work        what is measured, in milliseconds
    buffer       a selection of 64   the selection, and one pass of numpy over the same arrays
    actors       a group             processor time of replay, of Redis, and of the peers' ends of the wire
    tokens       1,000 sampled       the same
    group size   a rollout           the same
    learner      1,000 read          processor time of the learner's whole step, over tokens of a rollout

Actors and learner of a simulated run hardly wait (`benchmarks/simulated.py`), and half a batch is replayed; peers
encode, store, fetch, decode and make l_ref. The learner's step is a real one of a small made model, on one thread, over
as many tokens at each size. Every round measures all rows, every other one from the last to the first, so that a slow
moment of the machine does not fall on one row.

An exponent is that of a power law through the sizes, fitted in each round: at 0 cost grows as the work does, above it
faster. The work of a selection is the pass of numpy. `--plot` draws the rows into that file, and writes them as tables
beside it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import torch

from benchmarks.figure import Figure, run_alone, say
from benchmarks.growth_page import (
    FASTER,
    PASS,
    WORK,
    Points,
    Table,
    draw,
    exponents,
    spread,
    work_exponent,
    write_tables,
)
from benchmarks.learner import made_group, made_trainer
from benchmarks.load import Load
from benchmarks.selection import numpy_pass, select, stored
from benchmarks.simulated import simulate
from services.learner.step import Trainer, train_step
from services.replay.buffer import Buffer
from services.replay.policies import get_policy
from services.replay.rules import Moment

WANTED, SELECTIONS = 64, 50
Row = Callable[[int], dict[str, float]]  # a round -> part -> milliseconds for a unit of work


def measure(
    *,
    buffers: tuple[int, ...] = (512, 4096, 32768, 100_000),
    actors: tuple[int, ...] = (1, 2, 4, 8, 16),
    tokens: tuple[int, ...] = (100, 400, 1600, 8000),
    group_sizes: tuple[int, ...] = (4, 8, 16, 32),
    batch: int = 32,
    steps: int = 8,
    hidden: int = 128,
    layers: int = 2,
    trained: int = 16_000,
    rounds: int = 5,
    plot: str = "",
) -> list[Figure]:
    """An exponent for each part along each axis. `hidden`, `layers`, `trained`: the learner's model, tokens a step."""
    torch.set_num_threads(1)
    base = Load(batch=batch, steps=steps, step_s=0.01, slots=4, actors=4, policy="headroom_drift", select=batch // 2,
                max_lag=1)  # fmt: skip
    trainer = made_trainer(hidden, layers)
    learner_ms(trainer, min(tokens), trained, 0)  # warms up
    rows: dict[tuple[str, int], Row] = {}
    for n in buffers:
        rows["buffer", n] = partial(selection_ms, stored(n)[0])
    for n in actors:
        rows["actors", n] = partial(wire_ms, replace(base, actors=n, slots=2 * n), batch * steps)
    for n in tokens:
        sampled = batch * steps * base.group_size * n / 1000
        rows["tokens", n] = partial(wire_ms, replace(base, tokens=n), sampled)
    for n in group_sizes:
        rows["group size", n] = partial(wire_ms, replace(base, group_size=n), batch * steps * n)
    for n in tokens:
        rows["learner", n] = partial(learner_ms, trainer, n, trained)
    table = measured(rows, rounds)
    if plot:
        draw(table, Path(plot))
        write_tables(table, Path(plot).with_suffix(".md"))
    return [figure for axis, parts in table.items() for figure in figures_of(axis, parts)]


def measured(rows: dict[tuple[str, int], Row], rounds: int) -> Table:
    """All rows in each round, by turns from the first and from the last."""
    table: Table = {}
    for r in range(rounds):
        for (axis, n), row in list(rows.items())[:: -1 if r % 2 else 1]:
            costs = row(r)
            for part, ms in costs.items():
                table.setdefault(axis, {}).setdefault(part, {}).setdefault(n, []).append(ms)
            said = ", ".join(f"{part} {ms:.3g} ms" for part, ms in costs.items())
            say(f"round {r + 1} of {rounds}, {axis} {n:,}: {said}")
    ordered = dict.fromkeys(axis for axis, _ in rows)
    return {axis: {part: dict(sorted(points.items())) for part, points in table[axis].items()} for axis in ordered}


def figures_of(axis: str, parts: dict[str, Points]) -> list[Figure]:
    """The exponents of the rounds, for each part; the rows in the note."""
    figures = []
    for part, points in parts.items():
        note = ", ".join(f"{n:,}: {spread(values)}" for n, values in points.items())
        last = median(exponents(dict(list(points.items())[-2:])))
        note = f"of the two largest {last:.2f}; ms for {WORK[axis]}: {note}"
        at_most = None if part == PASS else work_exponent(parts, points) + FASTER
        figures.append(Figure(name=f"growth over {axis}: {part}", unit="exponent", ours=exponents(points),
                              judged="ours", at_most=at_most, note=note))  # fmt: skip
    return figures


def wire_ms(load: Load, units: float, _: int) -> dict[str, float]:
    """Of processor time, by part."""
    return {part: 1e3 * seconds / units for part, seconds in simulate(load).cpu_s.items()}


def learner_ms(trainer: Trainer, tokens: int, trained: int, r: int) -> dict[str, float]:
    """Of processor time for 1,000 tokens that the model reads, in a step of about `trained` tokens.

    A group has a rollout of half and one of once and a half of `tokens`, and no two rows are of one length.
    """
    lengths = np.array([tokens / 2, tokens * 3 / 2]).astype(np.int32)
    groups = [made_group(i, lengths + i) for i in range(max(1, trained // (2 * tokens)))]
    read = sum(row.inputs for group in groups for row in group.rows)
    began = process_time()
    train_step(trainer, r + 1, [], groups)
    return {"learner": 1e3 * (process_time() - began) / (read / 1000)}


def selection_ms(buffer: Buffer, r: int) -> dict[str, float]:
    """The medians of SELECTIONS selections and passes; each changes scores, as a step does."""
    rng, policy, taken = np.random.default_rng(r), get_policy("headroom_drift"), []
    for i in range(SELECTIONS):
        selection = select(buffer, policy, WANTED, Moment(step=r * SELECTIONS + i, seed=0), rng)
        taken.append((selection.seconds, numpy_pass(buffer, 0, WANTED)))
        for id, record in selection.refreshed.items():
            buffer.refresh(id, record.headroom, record.drift)
    return dict(zip(("selection", PASS), (1e3 * np.median(taken, axis=0)).tolist(), strict=True))


if __name__ == "__main__":
    run_alone(measure)
