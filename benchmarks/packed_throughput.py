"""Tokens per second, packed over padded: the demo's policy on the lengths of a recorded Atlas run.

    python -m benchmarks.packed_throughput [--micro-tokens 8192] [--rounds 5]

Both paths take turns, so the ratio is of one machine in one state. "in order" pads rollouts as they came, without
sorting them by length: what padding costs a trainer that does not care.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.figure import Figure, rates, run_alone, say
from services.learner.groups.group import Row
from services.learner.model.batching import micro_batches, tokens_read
from services.learner.model.policy import is_packed, load_policy, logprobs, shares_prompts
from tests.replay.recording import Recording

POLICY = Path(__file__).parents[1] / "examples" / "atlas" / "policy"
STEPS = 4


def recorded_rows(vocabulary: int) -> list[Row]:
    """Rollouts as long as the recorded ones, as many tokens trained, the last ones; what they are does not matter."""
    recording, rng, rows = Recording(), np.random.default_rng(0), []
    start = 0
    for step in range(STEPS):
        for header in recording.fresh(step):
            for total, sampled in zip(header.total_tokens, header.sampled_tokens, strict=True):
                n = header.prompt_tokens + total
                rows.append(Row(rng.integers(0, vocabulary, n), np.arange(n - sampled, n), start))
                start += sampled
    return rows


def in_order(rows: list[Row], budget: int) -> Iterator[list[Row]]:
    """Padded micro-batches without sorting."""
    batch: list[Row] = []
    for row in rows:
        if batch and tokens_read([*batch, row], packed=False) > budget:
            yield batch
            batch = []
        batch.append(row)
    yield batch


def seconds(model: Any, cuts: list[list[Row]], *, train: bool) -> float:
    """Of processor time for one pass over all the cuts."""
    began = time.process_time()
    with torch.set_grad_enabled(train):
        for cut in cuts:
            logp = logprobs(model, cut, 1.0)
            if train:
                logp.sum().backward()
    return time.process_time() - began


def measure(*, micro_tokens: int = 8192, rounds: int = 5) -> list[Figure]:
    """Scanning and training, packed against padded, in turns; the first round warms up."""
    torch.set_num_threads(1)
    models = {p: load_policy(POLICY, torch.float32, torch.device("cpu"), packed=p) for p in (True, False)}
    sharing = shares_prompts(models[True])
    rows = recorded_rows(models[True].get_input_embeddings().weight.shape[0])
    cuts = {
        "packed": (models[True], list(micro_batches(rows, micro_tokens, packed=True, sharing=sharing))),
        "padded, sorted by length": (models[False], list(micro_batches(rows, micro_tokens, packed=False))),
        "padded in order": (models[False], list(in_order(rows, micro_tokens))),
    }
    taken: dict[tuple[str, bool], list[float]] = {}
    for i in range(rounds + 1):
        say(f"round {i} of {rounds}")
        for name, (model, cut) in cuts.items():
            for train in (False, True):
                taken.setdefault((name, train), []).append(seconds(model, cut, train=train))
    tokens = sum(row.inputs for row in rows)
    rate = {key: rates(tokens, s[1:]) for key, s in taken.items()}
    lengths = [row.inputs for row in rows]
    figures = []
    for name, (model, cut) in list(cuts.items())[1:]:
        padding = 1 - tokens / sum(tokens_read(c, packed=is_packed(model)) for c in cut)
        note = (
            f"{len(rows)} rollouts of {min(lengths)} to {max(lengths)} tokens; {padding:.1%} of the peer's is padding"
        )
        figures += [
            Figure(name=f"{'training' if train else 'scan'}, packed, against {name}", unit="tokens/s",
                   ours=rate["packed", train], peer=rate[name, train], against=name, note=note)
            for train in (False, True)
        ]  # fmt: skip
    return figures


if __name__ == "__main__":
    run_alone(measure)
