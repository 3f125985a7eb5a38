"""The figures of one run, from its step events and its evaluation: everything a report says comes from here.

Step time is the learner's own clock: `step_s`, from the end of one step's training to the end of the next, over steps
2 to N. The first step holds the start of every process, the first evaluation and the filling of the pipeline, and is
left out; what comes after the last step (last evaluation, final checkpoint) is in no step.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from cli.run.view import tokens_per_s

Record = Mapping[str, Any]
PARTS: dict[str, tuple[str, ...]] = {
    "waiting": ("wait_s",),
    "scanning": ("scan_s",),
    "training": ("fetch_s", "reference_s", "train_s"),
    "publishing": ("publish_s", "checkpoint_s"),
}
LATE = 1 / 3  # of the run: what "late" figures average over


@dataclass(frozen=True)
class RunFigures:
    """One run. scalars: a row of runs.csv; steps: the step events; ages: age -> how many replayed groups had it."""

    arm: str
    seed: int
    scalars: dict[str, float | None]
    steps: list[dict[str, Any]]
    ages: Counter[int] = field(default_factory=Counter)


def figures_of(
    arm: str, seed: int, group_size: int, wanted: int, steps: Sequence[dict[str, Any]], summary: Record, quality: Record
) -> RunFigures:
    """Figures of a finished run. wanted: K, the groups a step may replay; quality: of the evaluation, may be empty."""
    ages = Counter(int(age) for step in steps for age in step.get("ages", []))
    scalars: dict[str, float | None] = {
        "steps": len(steps),
        **_responses(steps, group_size),
        **quality,
        **_time(steps),
        **_learning(steps),
        **_replay(steps, wanted, ages),
        "run_s": summary.get("seconds"),
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
        "restarts": summary.get("restarts"),
    }
    return RunFigures(arm, seed, scalars, list(steps), ages)


def _responses(steps: Sequence[Record], group_size: int) -> dict[str, float | None]:
    """Events of earlier versions count groups only, which were whole then."""

    def responses(step: Record, rollouts: str, groups: str) -> float:
        return step.get(rollouts, step.get(groups, 0) * group_size)

    return {
        "fresh_responses": responses(steps[-1], "rollouts_generated", "groups_generated") if steps else None,
        "filtered_groups": steps[-1].get("groups_filtered") if steps else None,
        "regenerated_groups": steps[-1].get("groups_regenerated") if steps else None,
        "trained_responses": sum(responses(s, "fresh_rollouts", "fresh_groups") for s in steps),
        "replayed_responses": sum(responses(s, "replay_rollouts", "replay_groups") for s in steps),
        "tokens_sampled": _sum(steps, "tokens_sampled"),
        "tokens_trained": _sum([_learner(s) for s in steps], "tokens_trained"),
    }


def step_seconds(step: Record) -> float | None:
    """The learner's time of one step."""
    return _learner(step).get("step_s", step.get("seconds"))


def part_seconds(step: Record, part: str) -> float:
    """Of one part of PARTS."""
    return sum(_learner(step).get(key, 0.0) for key in PARTS[part])


def _time(steps: Sequence[Record]) -> dict[str, float | None]:
    timed = steps[1:]
    whole = _mean([step_seconds(s) for s in timed])
    parts = {part: _mean([part_seconds(s, part) for s in timed]) for part in PARTS}
    return {
        "step_s": whole,
        "step_s_median": median(known) if (known := [v for s in timed if (v := step_seconds(s)) is not None]) else None,
        **{f"{part}_s": seconds for part, seconds in parts.items()},
        "waiting_share": (parts["waiting"] or 0.0) / whole if whole else None,
        "other_s": None if whole is None else whole - sum(p or 0.0 for p in parts.values()),
        "scan_exposed_s": _mean_key(timed, "scan_exposed_s"),
        "generation_s": _mean_key(timed, "generation_s_mean"),
        "env_s": _mean_key(timed, "env_s_mean"),
        "tokens_per_s": tokens_per_s(timed),
    }


def _learning(steps: Sequence[Record]) -> dict[str, float | None]:
    late = _late(steps)
    learner = [_learner(s) for s in steps]
    return {
        "correct_first": steps[0].get("correct_share") if steps else None,
        "correct_late": _mean_key(late, "correct_share"),
        "reward_late": _mean_key(late, "reward_mean"),
        "entropy": _mean_key(learner, "entropy"),
        "entropy_late": _mean_key([_learner(s) for s in late], "entropy"),
        "clip_share": _mean_key(learner, "clip_share"),
        "grad_norm": _mean_key(learner, "grad_norm"),
        "engine_gap": _mean_key(learner, "engine_gap"),
        "lag": _mean_key(steps, "lag_mean"),
        "mixed_share": _share(steps, "mixed_groups", "taken_groups"),
    }


def _replay(steps: Sequence[Record], wanted: int, ages: Counter[int]) -> dict[str, float | None]:
    replayed, scanned = _sum(steps, "replay_groups"), _sum(steps, "scanned")
    replaying = [s for s in steps if s.get("replay_groups")]
    late = [s for s in _late(steps) if s.get("replay_groups")]
    return {
        "acceptance": _sum(steps, "accepted") / scanned if scanned else None,
        "scanned": scanned / len(steps) if steps and scanned else None,
        "scan_depth": _mean_key(steps, "scan_depth") if scanned else None,
        "tau_last": steps[-1].get("tau") if steps and scanned else None,
        "filled": replayed / (wanted * len(steps)) if wanted and steps else None,
        "replay_kl": _mean([_learner(s).get("replay_kl") for s in replaying]),
        "replay_kl_late": _mean([_learner(s).get("replay_kl") for s in late]),
        "drift": _mean_key(replaying, "drift_mean"),
        "headroom": _mean_key(replaying, "headroom_mean"),
        "age": sum(age * n for age, n in ages.items()) / ages.total() if ages else None,
        "age_max": max(ages, default=None),
        "age_3_share": sum(n for age, n in ages.items() if age >= 3) / ages.total() if ages else None,
        "distinct_ages": _mean_key(replaying, "distinct_ages"),
        **_reuse(steps),
    }


def _reuse(steps: Sequence[Record]) -> dict[str, float | None]:
    """How the uses are spread over the stored groups, as the last step that says so reports it."""
    last: Record = next((s["reuse"] for s in reversed(steps) if isinstance(s.get("reuse"), dict)), {})
    return {f"reuse_{key}": value for key, value in last.items() if isinstance(value, int | float)}


def counterfactual(step: Record, side: str, key: str) -> float | None:
    """Headroom, Drift or age of what was `picked`, or of what `naive` would have picked from the same buffer."""
    sides = step.get("counterfactual") or {}
    value = (sides.get(side) or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def series(figures: RunFigures, value: Callable[[Record], float | None]) -> list[tuple[int, float]]:
    """(step, value) of the steps that have one."""
    return [(s["step"], float(v)) for s in figures.steps if (v := value(s)) is not None]


def learner_value(key: str) -> Callable[[Record], float | None]:
    """A reader of a figure that the learner reports."""
    return lambda step: _learner(step).get(key)


def step_value(key: str) -> Callable[[Record], float | None]:
    """A reader of a figure of the step event."""
    return lambda step: step.get(key)


def _late(steps: Sequence[Record]) -> Sequence[Record]:
    return steps[-max(1, round(len(steps) * LATE)) :]


def _learner(step: Record) -> Record:
    return step.get("learner") or {}


def _sum(rows: Sequence[Record], key: str) -> float:
    return sum(row[key] for row in rows if isinstance(row.get(key), int | float))


def _share(rows: Sequence[Record], part: str, whole: str) -> float | None:
    total = _sum(rows, whole)
    return _sum(rows, part) / total if total else None


def _mean_key(rows: Sequence[Record], key: str) -> float | None:
    return _mean([row.get(key) for row in rows])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None
