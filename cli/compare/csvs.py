"""The figures of a study as CSV, for whoever wants to draw or test something else."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cli.compare.figures import RunFigures
from cli.compare.results import Results
from cli.compare.tables import Difference, all_differences


def write(results: Results, folder: Path) -> None:
    """runs.csv, steps.csv, ages.csv, differences.csv."""
    runs = [run for of_arm in results.arms.values() for run in of_arm]
    keys = list(dict.fromkeys(key for run in runs for key in run.scalars))
    rows = [[run.arm, run.seed, *(run.scalars.get(key) for key in keys)] for run in runs]
    _write(folder / "runs.csv", ["arm", "seed", *keys], rows)
    _write_steps(folder / "steps.csv", runs)
    ages = [[run.arm, run.seed, age, run.ages[age]] for run in runs for age in sorted(run.ages)]
    _write(folder / "ages.csv", ["arm", "seed", "age", "replayed_groups"], ages)
    _write(folder / "differences.csv", list(Difference.HEAD), [d.row() for d in all_differences(results)])


def _write_steps(path: Path, runs: Sequence[RunFigures]) -> None:
    rows = [{"arm": run.arm, "seed": run.seed, **_flat(step)} for run in runs for step in run.steps]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    _write(path, keys, [[row.get(key) for key in keys] for row in rows])


def _flat(step: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures under dotted names; lists as words, since a cell holds one value."""
    flat: dict[str, Any] = {}
    for key, value in step.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
