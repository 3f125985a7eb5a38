"""What became of a run that was hurt: chaos.json in its folder, and the same as a table."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from cli.chaos.checker import Verdict
from cli.chaos.faults import Inflicted
from cli.chaos.schedule import KINDS

FILE = "chaos.json"
RULES_SHOWN = 20


def report(
    inflicted: Sequence[Inflicted],
    planned: int,
    verdict: Verdict,
    summary: dict[str, Any],
    without: dict[str, Any] | None,
    records: Sequence[dict[str, Any]],
    ended: str,
) -> dict[str, Any]:
    """The record. without: the summary of a run without faults. ended: why the run ended before its last step."""
    counts = verdict.counts
    return {
        "passed": verdict.passed and not ended,
        "ended": ended or ("" if verdict.passed or verdict.broken else verdict.sentence),
        "broken": verdict.broken,
        "faults_planned": planned,
        "faults": len(inflicted),
        "kinds": {kind: _of_kind(kind, inflicted, records) for kind in KINDS},
        "groups_lost": counts["lost"],
        "groups_counted_twice": counts["counted_twice"],
        "groups_given_up": counts["given_up"],
        "groups_rejected": counts["rejected"],
        "steps": summary.get("steps"),
        "seconds_per_step": _median([r["seconds"] for r in records if r["kind"] == "step"]),
        "em_first": summary.get("em_first"),
        "em_last": summary.get("em_last"),
        "em_last_without_faults": without.get("em_last") if without else None,
        "em_noise": _noise(summary, without),
        "weights_refused": summary.get("weights_refused"),
        "restarts": summary.get("restarts"),
        "notes": [f.note for f in inflicted if f.note],
        "log": counts,
    }


def write(run_dir: Path, record: dict[str, Any]) -> Path:
    """Write chaos.json."""
    (run_dir / FILE).write_text(json.dumps(record, indent=1) + "\n")
    return run_dir / FILE


def show(record: dict[str, Any], name: str, file: IO[str] | None = None) -> None:
    """The table and the verdict."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=file, highlight=False, markup=False)
    table = Table(title=f"{name}: {record['faults']} faults", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("fault")
    for column in ("times", "next step, median", "longest"):
        table.add_column(column, justify="right")
    for kind, found in record["kinds"].items():
        table.add_row(kind, str(found["times"]), _seconds(found["next_step_s"]), _seconds(found["longest_s"]))
    console.print(table)
    console.print(f"a step takes {_seconds(record['seconds_per_step'])} (median); {record['restarts']} restarts")
    log = record["log"]
    console.print(
        f"{log['tasks']} tasks in {log['attempts']} attempts: {log['groups']} groups, {log['given_up']} given up and "
        f"counted, {record['groups_lost']} lost; {log['steps']} steps in {log['lineages']} lineages, "
        f"{log['steps_again']} trained again, {record['groups_counted_twice']} groups counted twice"
    )
    console.print(f"EM on held-out questions {_em(record)}")
    for sentence in record["broken"][:RULES_SHOWN]:
        console.print(f"broken: {sentence}", style="red")
    if len(record["broken"]) > RULES_SHOWN:
        console.print(f"... and {len(record['broken']) - RULES_SHOWN} more in {FILE}", style="red")
    if record["ended"]:
        console.print(record["ended"], style="red")
    if record["passed"]:
        console.print("The durable log keeps every rule.", style="green")


def _of_kind(kind: str, inflicted: Sequence[Inflicted], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How often, and how many seconds after its end the next step was trained."""
    steps = [r["time"] for r in records if r["kind"] == "step"]
    mine = [f for f in inflicted if f.fault.kind == kind]
    waits = [min(after) - f.ended for f in mine if (after := [t for t in steps if t > f.ended])]
    return {"times": len(mine), "next_step_s": _median(waits), "longest_s": max(waits, default=None)}


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _noise(summary: dict[str, Any], without: dict[str, Any] | None) -> float | None:
    """Two standard errors of the difference of the two EM; the noise of training itself comes on top."""
    runs = [r for r in (summary, without) if r and r.get("em_last") is not None and r.get("eval_questions")]
    if len(runs) < 2:
        return None
    return 2 * sum(r["em_last"] * (1 - r["em_last"]) / r["eval_questions"] for r in runs) ** 0.5


def _em(record: dict[str, Any]) -> str:
    last, other = record["em_last"], record["em_last_without_faults"]
    text = f"{_percent(record['em_first'])} before, {_percent(last)} after"
    if other is None or last is None or record["em_noise"] is None:
        return text
    words = "within" if abs(last - other) <= record["em_noise"] else "outside"
    return f"{text}; {_percent(other)} without faults, {words} the noise of {_percent(record['em_noise'])}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
