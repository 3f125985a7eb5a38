"""What a run leaves behind for a person: summary.json, samples.md, curves.png, and a link to the final checkpoint."""

import json
from pathlib import Path
from typing import Any

from cli.run.recorder import EVENTS, read_records
from cli.run.samples import as_markdown
from cli.run.summary import summarise
from shared import checkpoints
from shared.config import Config

SUMMARY, CURVES, SAMPLES, FINAL = "summary.json", "curves.png", "samples.md", "final"


def is_complete(config: Config) -> bool:
    """Whether the run has trained all of its steps, its last evaluation is in, and its last checkpoint is there."""
    records, steps = read_records(config.run_dir / EVENTS), config.run.steps
    finished = any(r["kind"] == "finished" and r["step"] >= steps for r in records)
    trained = max((r["step"] + 1 for r in records if r["kind"] == "step"), default=0)
    return finished and trained >= steps and (config.checkpoints_dir / f"step_{trained}").is_dir()


def write(run_dir: Path, pictures: bool) -> dict[str, Any]:
    """Write all that the recorded events allow; returns the summary. `pictures`: curves too, which take a second."""
    records = read_records(run_dir / EVENTS)
    summary = summarise(records)
    (run_dir / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
    (run_dir / SAMPLES).write_text(as_markdown(records))
    link_final(run_dir)
    if pictures:
        from cli.run.curves import draw

        draw(records, run_dir / CURVES, run_dir.name)
    return summary


def link_final(run_dir: Path) -> Path | None:
    """Point `final` at the newest checkpoint; None where there is none."""
    root = run_dir / "checkpoints"
    steps = checkpoints.steps(root)
    if not steps:
        return None
    newest = checkpoints.folder(root, steps[-1])
    aside = run_dir / ".final"
    aside.unlink(missing_ok=True)
    aside.symlink_to(newest.relative_to(run_dir))
    aside.replace(run_dir / FINAL)
    return newest
