"""Everything that the runs of a study came to, read from their folders."""

import json
from dataclasses import dataclass
from typing import Any

from cli.compare import evaluation
from cli.compare.figures import RunFigures, figures_of
from cli.compare.runner import trained
from cli.compare.study import Run, Study
from cli.run.artefacts import SUMMARY
from cli.run.recorder import METRICS, read_records


@dataclass(frozen=True)
class Results:
    """arms: the runs that are made, by arm; notes: what was noted at the end of each, by name; missing: not made."""

    study: Study
    arms: dict[str, list[RunFigures]]
    notes: dict[str, dict[str, Any]]
    missing: list[str]

    def of(self, arm: str, key: str) -> dict[int, float]:
        """seed -> a figure of the arm's runs, where it was measured."""
        return {r.seed: float(v) for r in self.arms.get(arm, []) if (v := r.scalars.get(key)) is not None}

    def steps_of(self, arm: str) -> int:
        """The steps that the study gives the runs of an arm."""
        return next(run.config.run.steps for run in self.study.runs if run.arm == arm)

    @property
    def place(self) -> dict[str, str]:
        """Machine, versions, commit; all values where runs differ."""
        found: dict[str, list[str]] = {}
        for note in self.notes.values():
            for key, value in note["place"].items():
                found.setdefault(key, [])
                if value not in found[key]:
                    found[key].append(value)
        return {key: "; ".join(values) for key, values in found.items()}


def collect(study: Study) -> Results:
    """Read what is made so far."""
    arms: dict[str, list[RunFigures]] = {arm: [] for arm in study.arms}
    notes, missing = {}, []
    for run in study.runs:
        note = trained(run)
        if note is None:
            missing.append(run.name)
            continue
        notes[run.name] = note
        arms[run.arm].append(_figures(study, run, note["steps"]))
    return Results(study, {arm: runs for arm, runs in arms.items() if runs}, notes, missing)


def _figures(study: Study, run: Run, steps: int) -> RunFigures:
    """The figures up to the weights that were evaluated."""
    folder, config = run.config.run_dir, run.config
    records = [record for record in read_records(folder / METRICS) if record["step"] < steps]
    summary = json.loads((folder / SUMMARY).read_text())
    quality = evaluation.quality_of(study, run)
    return figures_of(run.arm, run.seed, config.rollout.group_size, run.wanted, records, summary, quality)
