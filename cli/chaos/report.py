"""What became of a run that was hurt: chaos.json in its folder, and the same as a table.

EM is held against a run without faults by Newcombe's interval of the difference of two proportions (Statistics in
Medicine 17, 1998, method 10: Wilson's interval of each, combined), two-sided, 95 %, over the evaluated questions.
"""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from cli.chaos.checker import Verdict
from cli.chaos.faults import Inflicted
from cli.chaos.schedule import KINDS

FILE = "chaos.json"
RULES_SHOWN = 20
Z = statistics.NormalDist().inv_cdf(0.975)


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
    change = _em_change(summary, without)
    return {
        "passed": verdict.passed and not ended and (without is None or bool(change and change[0] <= 0 <= change[1])),
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
        "em_change": change,
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
    if not record["broken"] and not record["ended"]:
        console.print("The durable log keeps every rule.", style="green")


def _of_kind(kind: str, inflicted: Sequence[Inflicted], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How often, and how many seconds after its end the next step was trained."""
    steps = [r["time"] for r in records if r["kind"] == "step"]
    mine = [f for f in inflicted if f.fault.kind == kind]
    waits = [min(after) - f.ended for f in mine if (after := [t for t in steps if t > f.ended])]
    return {"times": len(mine), "next_step_s": _median(waits), "longest_s": max(waits, default=None)}


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _em_change(summary: dict[str, Any], without: dict[str, Any] | None) -> list[float] | None:
    """How much higher EM is without faults, low and high; None where a run has none. Training's noise comes on top."""
    runs = [r for r in (without, summary) if r and r.get("em_last") is not None and r.get("eval_questions")]
    if len(runs) < 2:
        return None
    p, q = [r["em_last"] for r in runs]
    (p_low, p_high), (q_low, q_high) = [_wilson(r["em_last"], r["eval_questions"]) for r in runs]
    low = p - q - math.hypot(p - p_low, q_high - q)
    return [low, p - q + math.hypot(p_high - p, q - q_low)]


def _wilson(share: float, n: int) -> tuple[float, float]:
    centre, spread = share + Z**2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n * n))
    return (centre - spread) / (1 + Z**2 / n), (centre + spread) / (1 + Z**2 / n)


def _em(record: dict[str, Any]) -> str:
    text = f"{_percent(record['em_first'])} before, {_percent(record['em_last'])} after"
    if record["em_last_without_faults"] is None:
        return text
    if record["em_change"] is None:
        return f"{text}, which cannot be held against the {_percent(record['em_last_without_faults'])} without faults"
    low, high = record["em_change"]
    words = "within" if low <= 0 <= high else "outside"
    return (
        f"{text}; {_percent(record['em_last_without_faults'])} without faults, {words} the noise: the difference is "
        f"between {100 * low:+.1f} and {100 * high:+.1f} points (95 %)"
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
