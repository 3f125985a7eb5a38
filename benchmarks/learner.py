"""Tokens trained per second against three times the forward alone on the same packed batch; and peak memory.

    python -m benchmarks.learner [--groups 4] [--rollouts 8] [--tokens 128] [--hidden 256] [--layers 6]

A training step is at least a forward and, as it costs twice as much, a backward. Ours is the whole step of the method
on one mini-batch: reference, loss, backward, records, clipping, AdamW. The forward is the learner's own scan without
its records. Memory is what was resident at most beyond torch and its code, against 16 bytes a parameter: weights,
gradient and two moments.
"""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.apart import peak_bytes
from benchmarks.figure import Figure, run_alone, say
from benchmarks.made_model import write_made_model
from services.learner.clock import Clock
from services.learner.groups.group import Group, group_from_payload
from services.learner.model.batching import flatten
from services.learner.model.optimise import Optimiser
from services.learner.model.policy import load_policy
from services.learner.step import Trainer, forward, train_step
from services.learner.stop import Stop
from shared import malloc
from shared.payload import Payload
from shared.settings import Learner

VOCABULARY, PROMPT = 8192, 64


def measure(
    *, groups: int = 4, rollouts: int = 8, tokens: int = 128, hidden: int = 256, layers: int = 6, repetitions: int = 5
) -> list[Figure]:
    """Forward and step by turns, the first turn warms up."""
    before = peak_bytes()
    trainer = made_trainer(hidden, layers)
    flat = flatten(made_batch(groups, rollouts, tokens), torch.device("cpu"))
    taken, spent = np.zeros((repetitions + 1, 2)), np.zeros((repetitions + 1, 3, 3))
    for i in range(repetitions + 1):
        fresh = made_batch(groups, rollouts, tokens)
        began, spent[i, 0] = time.perf_counter(), spent_by_now()
        forward(trainer, flat)
        between, spent[i, 1] = time.perf_counter(), spent_by_now()
        train_step(trainer, i, [], fresh)
        taken[i], spent[i, 2] = (between - began, time.perf_counter() - between), spent_by_now()
        say(f"repetition {i} of {repetitions}: forward {taken[i, 0]:.2f} s, step {taken[i, 1]:.2f} s")
    read, parameters = sum(row.inputs for row in flat.rows), sum(p.numel() for p in trainer.model.parameters())
    alone, step = taken[1:].T
    (forward_s, _), (step_s, pages) = (
        ("{:.2f} + {:.2f} s".format(*both), gigabytes)
        for *both, gigabytes in np.median(np.diff(spent[1:], axis=1), axis=0)
    )
    note = (
        f"{parameters / 1e6:.1f} M parameters, {read} tokens read, {flat.tokens} of them trained; processor time, "
        f"program + kernel: a forward {forward_s}, a step {step_s}, for {pages:.2f} GB of new pages"
    )
    return [
        Figure(name="learner", unit="tokens/s", ours=(read / step).tolist(), peer=(read / (3 * alone)).tolist(),
               against="three forwards", at_least=0.9, note=note),
        Figure(name="learner, peak memory", unit="MiB", ours=[(peak_bytes() - before) / 2**20],
               peer=[16 * parameters / 2**20], against="weights, gradient, moments"),
    ]  # fmt: skip


def spent_by_now() -> tuple[float, float, float]:
    """Seconds of the processor in the program and in the kernel, and GB of pages that were made."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime, used.ru_minflt * resource.getpagesize() / 1e9


def made_trainer(hidden: int, layers: int) -> Trainer:
    """A random policy, loaded as the learner loads one."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_made_model(Path(scratch), hidden=hidden, layers=layers, vocabulary=VOCABULARY)
        model = load_policy(folder, torch.float32, torch.device("cpu"))
    settings = Learner.model_validate({"mini_batch": 0, "micro_tokens": 8192})
    return Trainer(model, None, Optimiser(model.parameters(), settings, 10), settings, 1.0, Clock(), Stop())


def made_batch(groups: int, rollouts: int, tokens: int) -> list[Group]:
    """Groups whose rollouts are half to once and a half of `tokens` long."""
    least, above = max(2, tokens // 2), tokens * 3 // 2 + 2
    lengths = [np.random.default_rng(number).integers(least, above, rollouts) for number in range(groups)]
    return [made_group(number, each.astype(np.int32)) for number, each in enumerate(lengths)]


def made_group(number: int, lengths: NDArray[np.int32]) -> Group:
    """A prompt, and rollouts of these lengths."""
    rng = np.random.default_rng(number)
    total, rollouts = int(lengths.sum()), len(lengths)
    payload = Payload(
        id=f"t{number:08d}", run="bench", prompt=rng.integers(0, VOCABULARY, PROMPT).astype(np.int32), lengths=lengths,
        tokens=rng.integers(0, VOCABULARY, total).astype(np.int32), mask=np.ones(total, bool),
        l_gen=np.full(total, -9.0, np.float32), advantages=np.where(np.arange(rollouts) % 2, 1.0, -1.0).astype("<f4"),
        version_runs=np.array([[total, 0, 0]], np.int32), turns=np.zeros((0, 3), np.int32),
        documents=[[] for _ in range(rollouts)],
    )  # fmt: skip
    return group_from_payload(payload, VOCABULARY, 2**15)


if __name__ == "__main__":
    malloc.keep_freed()  # as the learner does
    run_alone(measure)
