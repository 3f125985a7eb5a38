"""`headrace export`: the figures of a run for other programs: TensorBoard, or a table of comma-separated values."""

import argparse
import csv
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

EPILOG = """examples:
  headrace export runs/atlas-001 --to tensorboard           then: tensorboard --logdir runs
  headrace export runs/atlas-001 --to tensorboard --follow  the same of a run that goes on, until it ends or stops
  headrace export runs/atlas-001 --to csv                   a row for each step, in runs/atlas-001/metrics.csv

Every number of metrics.jsonl becomes a curve of the same name (learner.loss: learner/loss), and each evaluation one
under eval/. Nothing has to be installed for it but TensorBoard where it is looked at; Weights & Biases reads the same
file (`wandb sync runs/atlas-001/tensorboard`). The run itself is read, never changed.
"""
LARGEST = 3.4e38  # an event holds a float32
LOOK_S = 2.0  # between two looks at a run that goes on
FOLDER, TABLE = "tensorboard", "metrics.csv"
_NOT_CURVES = {"kind", "time", "step", "steps"}


def add_parser(subparsers: Any) -> None:
    """Add `export` to the subparsers of the `headrace` command."""
    export = subparsers.add_parser(
        "export",
        help="a run's figures for TensorBoard, or as a table",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument("run_dir", nargs="?", metavar="RUN_DIR", help="by default the newest under ./runs")
    export.add_argument("--to", choices=("tensorboard", "csv"), required=True, help="for which program")
    export.add_argument("--out", metavar="PATH", help=f"the folder or file; by default RUN_DIR/{FOLDER} or {TABLE}")
    export.add_argument("--follow", action="store_true", help="tensorboard: go on until the run ends or stops")
    export.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write and say where; UserError where the run has no step yet."""
    from cli.run.recorder import METRICS, read_records
    from cli.status import newest_run
    from shared.errors import UserError

    folder = Path(args.run_dir) if args.run_dir else newest_run(Path("runs"))
    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder} is not the folder of a run: it holds no config.toml.")
    if args.to == "csv":
        if args.follow:
            raise UserError("--follow is of --to tensorboard: a table is written once.")
        steps = read_records(folder / METRICS)
        if not steps:
            raise UserError(f"{folder / METRICS} holds no step yet: wait for the first one.")
        out = Path(args.out or folder / TABLE)
        write_table(out, steps)
    else:
        out = Path(args.out or folder / FOLDER)
        write_events(folder, out, args.follow)
    print(out)
    return 0


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """(tag, value) of every number of a record, those of a table inside it behind its name; none beyond float32."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and abs(value) <= LARGEST and (prefix or key not in _NOT_CURVES):
            yield prefix + key, value


def write_table(out: Path, steps: list[dict[str, Any]]) -> None:
    """A row for each step; a column for each number that any step has."""
    rows = [{"step": step["step"], "time": step["time"], **dict(scalars(step))} for step in steps]
    columns = dict.fromkeys(key for row in rows for key in row)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", errors="replace") as file:
        table = csv.DictWriter(file, list(columns), restval="")
        table.writeheader()
        table.writerows(rows)


def write_events(folder: Path, out: Path, follow: bool) -> None:
    """One event file, written anew: the steps and evaluations there are, and those that come until the run ends.

    A step that is trained again while this goes on (a crash, a resumed run) is written again: TensorBoard drops what
    came after it.
    """
    from cli.run.recorder import EVENTS, METRICS, read_records
    from cli.run.summary import is_finished
    from cli.run.untrained import LOCK
    from cli.tfevents import EventFile
    from shared.errors import UserError
    from shared.files import is_held

    until = -math.inf
    file = None
    while True:
        goes_on = follow and is_held(folder / LOCK)
        events = read_records(folder / EVENTS)
        evals = [r | {"step": r["round"]} for r in events if r["kind"] == "eval"]
        records = [r for r in [*read_records(folder / METRICS), *evals] if r["time"] > until]
        for record in sorted(records, key=lambda r: r["time"]):
            file = file or EventFile(out / f"events.out.tfevents.{int(record['time'])}.headrace", record["time"])
            until = record["time"]
            file.add(record["step"], until, _curves(record))
        if not goes_on or is_finished(events):
            break
        time.sleep(LOOK_S)
    if file is None:
        raise UserError(f"{folder / METRICS} holds no step yet: wait for the first one, or add --follow.")
    file.close()


def _curves(record: dict[str, Any]) -> dict[str, float]:
    named = {k: v for k, v in record.items() if k not in ("step", "time", "round")}
    return dict(scalars({"eval": named} if record["kind"] == "eval" else record))
