"""Steps per second with one step of lag over the synchronous loop, where generation and training take equally long.

    python -m benchmarks.async_over_sync [--batch 64] [--slots 4] [--step_s 1.0] [--steps 12]

A real replay process and a real Redis; actors and learner wait in place of working (`benchmarks/simulated.py`). Twice
is what overlapping two equal parts gives at best, where no group is longer than another.
"""

from dataclasses import replace

import numpy as np

from benchmarks.figure import Figure, run_alone, say
from benchmarks.load import Load, ideal
from benchmarks.simulated import simulate


def measure(
    *, batch: int = 64, slots: int = 4, step_s: float = 1.0, steps: int = 12, repetitions: int = 3
) -> list[Figure]:
    """max_lag 1 over max_lag 0, on the same lengths."""
    overlapped, synchronous, bounds = [], [], []
    for seed in range(repetitions):
        load = Load(batch=batch, slots=slots, step_s=step_s, steps=steps, capacity=1.0, max_lag=1, seed=seed)
        at_zero = replace(load, max_lag=0)
        overlapped.append(1 / simulate(load).mean_step_s)
        synchronous.append(1 / simulate(at_zero).mean_step_s)
        bounds.append(ideal(at_zero)[1] / ideal(load)[1])
        say(f"seed {seed}: {overlapped[-1] / synchronous[-1]:.2f} times; the rule alone gives {bounds[-1]:.2f}")
    note = f"the rule alone, without any cost, gives {np.median(bounds):.2f} with these lengths"
    return [
        Figure(name="async over sync", unit="steps/s", ours=overlapped, peer=synchronous, against="max_lag 0",
               at_least=1.8, note=note)
    ]  # fmt: skip


if __name__ == "__main__":
    run_alone(measure)
