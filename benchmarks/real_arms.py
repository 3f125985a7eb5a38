"""Step times of real Atlas runs: headroom_drift over naive, and over half as many fresh groups again.

    python -m benchmarks.real_arms [--steps 12] [--repetitions 1]
    python -m benchmarks.real_arms --study runs/paper-shape

The settings are those of examples/studies/paper-shape.toml: synchronous, b = 16, r = 8, two actors that play half a
batch at a time, retrievals that take 0.7 s in the middle. Without `--study` three short runs are made for each
repetition, of about 9 s a step; with it, the runs that `headrace compare` left in its folder are read, a repetition for
each seed, the counterfactual that it measures in the arm of headroom_drift included.
"""

import json
import statistics
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure, run_alone, say
from benchmarks.running import EXAMPLES, WARM_UP, steps_of
from shared.errors import UserError

STUDY = EXAMPLES / "studies" / "paper-shape.toml"
ARMS = {"headroom_drift": "b + HD b/2", "naive": "b + naive b/2", "1.5 b": "1.5 b"}
Records = list[dict[str, Any]]


def measure(*, study: str = "", steps: int = 12, repetitions: int = 1) -> list[Figure]:
    """Of a study's seeds that have all three arms, or of runs made here."""
    if study:
        read = [of_study(Path(study), arm) for arm in ARMS]
        seeds = sorted(set.intersection(*map(set, read)))  # of a study under way, those that it has of every arm
        if not seeds:
            raise UserError(
                f"--study {study} holds no seed that has finished runs of {' and of '.join(ARMS.values())}."
            )
        runs = [[arm[seed] for arm in read] for seed in seeds]
    else:
        runs = [[made(arm, steps, seed) for arm in ARMS] for seed in range(repetitions)]
    seconds = {arm: [mean(run[i], "seconds") for run in runs] for i, arm in enumerate(ARMS)}
    scan = [[sum(r[part] for r in run[0]) for part in ("scan_hidden_s", "scan_s")] for run in runs]
    note = f"{statistics.mean(mean(run[0], 'scanned') for run in runs):.1f} groups scanned a step"
    ours = seconds["headroom_drift"]
    return [
        Figure(name="hidden scan, real runs: step time", unit="s", ours=ours, peer=seconds["naive"], against="naive",
               at_most=1.01, note=note),
        Figure(name="hidden scan, real runs: hidden", unit="%", judged="ours", at_least=95.0,
               ours=[100 * hidden / total for hidden, total in scan], note="of the seconds of scanning"),
        Figure(name="replay for fresh, real runs: step time", unit="s", ours=ours, peer=seconds["1.5 b"],
               against="1.5 b", at_most=0.80),
    ]  # fmt: skip


def mean(records: Records, name: str) -> float:
    """Of a number, over steps."""
    return statistics.mean(record[name] for record in records)


def of_study(folder: Path, arm: str) -> dict[int, Records]:
    """The steps behind the warm-up of each finished run of an arm, by seed."""
    slug = ARMS[arm].replace(" + ", "-").replace("/", "-over-").replace(" ", "-")
    runs = {int(run.name.rpartition("-s")[2]): run for run in (folder / "runs").glob(f"{slug}-s[0-9]*")}
    return {
        seed: [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
        for seed, run in runs.items()
        if (run / "trained.json").exists()
    }


def made(arm: str, steps: int, seed: int) -> Records:
    """The steps of a run with the study's settings, without its counterfactual."""
    study = tomllib.loads(STUDY.read_text())
    settings = study["common"] | next(a["settings"] for a in study["arm"] if a["name"] == ARMS[arm])
    settings = {key.replace(".", "__"): value for key, value in settings.items()}
    records = steps_of("atlas", steps, **settings | {"run__seed": seed, "replay__counterfactual": "false"})
    say(f"seed {seed}, {arm}: {mean(records, 'seconds'):.2f} s a step")
    return records


if __name__ == "__main__":
    run_alone(measure)
