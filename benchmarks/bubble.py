"""The learner's idle share with long-tailed lengths, and whether long groups are trained as often as they are offered.

    python -m benchmarks.bubble [--batch 64] [--slots 4] [--step_s 1.0] [--steps 20]

A real replay process and a real Redis; actors and learner wait in place of working (`benchmarks/simulated.py`). The
slots make 1.1 times the groups that the learner trains. The peer is the same load under the same admission rule with
no cost but the waiting itself (`benchmarks/load.py`): its idle share is what lengths and lag bound ask for, the rest is
the price of processes, streams and Redis.
"""

import numpy as np

from benchmarks.figure import Figure, run_alone, say
from benchmarks.load import Load, ideal
from benchmarks.simulated import Seen, simulate


def measure(
    *,
    batch: int = 64,
    slots: int = 4,
    step_s: float = 1.0,
    steps: int = 20,
    repetitions: int = 3,
    lags: tuple[int, ...] = (1, 2),
) -> list[Figure]:
    """Idle share and lengths, for each lag bound."""
    figures = []
    for lag in lags:
        loads = [
            Load(batch=batch, slots=slots, step_s=step_s, steps=steps, max_lag=lag, seed=seed)
            for seed in range(repetitions)
        ]
        runs: list[Seen] = []
        for load in loads:
            runs.append(simulate(load))
            say(f"max_lag {lag}, seed {load.seed}: idle {runs[-1].idle_share:.1%}, {runs[-1].mean_step_s:.3f} s a step")
        bound = [100 * ideal(load)[0] for load in loads]
        slowest = max(max(map(load.length, range(steps * batch))) for load in loads) * loads[0].group_s
        figures.append(Figure(
            name=f"bubble, max_lag {lag}: idle", unit="%", ours=[100 * run.idle_share for run in runs], judged="ours",
            at_most=5.0,
            note=f"the rule alone, without any cost: {np.median(bound):.1f} %; a step trains for {step_s:g} s, groups "
            f"take {loads[0].group_s:.3f} s on average and up to {slowest:.2f} s; fetching payloads takes "
            f"{np.median([sum(r.fetch_s) / sum(r.step_s) for r in runs]):.1%} of the time",
        ))  # fmt: skip
        figures.append(Figure(
            name=f"bubble, max_lag {lag}: length trained", unit="mean lengths",
            ours=[mean_length(run, run.trained) for run in runs], peer=[mean_length(run, run.begun) for run in runs],
            against="length of all begun", at_least=0.97,
            note="largest distance between the two distributions (Kolmogorov-Smirnov) "
            f"{max(distance(run) for run in runs):.3f}",
        ))  # fmt: skip
    return figures


def mean_length(run: Seen, tasks: list[int]) -> float:
    """Of these tasks."""
    return float(np.mean([run.load.length(n) for n in tasks]))


def distance(run: Seen) -> float:
    """sup |F - G| of the lengths trained and the lengths begun."""
    trained, begun = (np.sort([run.load.length(n) for n in tasks]) for tasks in (run.trained, run.begun))
    at = np.concatenate([trained, begun])
    share = [np.searchsorted(lengths, at, side="right") / len(lengths) for lengths in (trained, begun)]
    return float(np.abs(share[0] - share[1]).max())


if __name__ == "__main__":
    run_alone(measure)
