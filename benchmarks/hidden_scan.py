"""What the scan adds to a step that waits for generation, and what replay in place of fresh groups saves.

    python -m benchmarks.hidden_scan [--batch 32] [--slots 4] [--step_s 0.5] [--steps 10]

A real replay process and a real Redis; actors and learner wait in place of working (`benchmarks/simulated.py`), a scan
for a third of what training the same group takes (a forward without its backward), of which 40 % pass the gate, as in
the paper. Generation is the bottleneck: it makes b groups in three times what training them takes, so that it is about
three quarters of a synchronous step, as the paper's retrieval makes it. `b` is plain GRPO, `naive` and `headroom_drift`
add b/2 stored groups, `1.5 b` generates half as much again.
"""

import numpy as np

from benchmarks.figure import Figure, run_alone, say
from benchmarks.load import Load
from benchmarks.simulated import Seen, simulate

CAPACITY = 1 / 3


def measure(
    *,
    batch: int = 32,
    slots: int = 4,
    step_s: float = 0.5,
    steps: int = 10,
    repetitions: int = 3,
    lags: tuple[int, ...] = (0, 1),
) -> list[Figure]:
    """Step times over each other, synchronous and with a step of lag, and the hidden share of the scan."""
    figures = []
    for lag in lags:
        runs: dict[str, list[Seen]] = {"naive": [], "headroom_drift": [], "1.5 b": []}
        for seed in range(repetitions):
            for arm in runs:
                runs[arm].append(simulate(load_of(arm, batch, slots, step_s, steps, lag, seed)))
            taken = {arm: f"{seen[-1].mean_step_s:.3f} s" for arm, seen in runs.items()}
            say(f"max_lag {lag}, seed {seed}: {taken}")
        seconds = {arm: [run.mean_step_s for run in seen] for arm, seen in runs.items()}
        scans = [(run.total("scan_hidden_s"), run.total("scan_s")) for run in runs["headroom_drift"]]
        scanned = np.mean([run.total("scanned") / steps for run in runs["headroom_drift"]])
        figures += [
            Figure(name=f"hidden scan, max_lag {lag}: step time", unit="s", ours=seconds["headroom_drift"],
                   peer=seconds["naive"], against="naive", at_most=1.01,
                   note=f"{scanned:.0f} groups scanned a step in {np.mean([s for _, s in scans]) / steps:.2f} s"),
            Figure(name=f"hidden scan, max_lag {lag}: hidden", unit="%", judged="ours", at_least=95.0,
                   ours=[100 * hidden / scan for hidden, scan in scans], note="of the seconds of scanning"),
            Figure(name=f"replay for fresh, max_lag {lag}: step time", unit="s", ours=seconds["headroom_drift"],
                   peer=seconds["1.5 b"], against="1.5 b", at_most=0.80),
        ]  # fmt: skip
    return figures


def load_of(arm: str, batch: int, slots: int, step_s: float, steps: int, lag: int, seed: int) -> Load:
    """An arm's load, on the same slots. `step_s` is for b groups."""
    size = batch * 3 // 2 if arm == "1.5 b" else batch
    grown = size / batch
    policy, select = ("none", 0) if arm == "1.5 b" else (arm, batch // 2)
    return Load(batch=size, slots=slots, step_s=step_s * grown, steps=steps, capacity=CAPACITY, max_lag=lag, seed=seed,
                policy=policy, select=select)  # fmt: skip


if __name__ == "__main__":
    run_alone(measure)
