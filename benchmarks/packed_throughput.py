"""Tokens per second, packed over padded: the demo's policy on the lengths of a recorded Atlas run.

    .venv/bin/python -m benchmarks.packed_throughput [--micro-tokens 8192] [--rounds 5]

Both paths take turns, so the ratio is of one machine in one state. "in order" pads rollouts as they came, without
sorting them by length: what padding costs a trainer that does not care.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.learner.groups.group import Row
from services.learner.model.batching import micro_batches, tokens_read
from services.learner.model.policy import is_packed, load_policy, logprobs
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = {p: load_policy(POLICY, torch.float32, torch.device("cpu"), packed=p) for p in (True, False)}
    rows = recorded_rows(models[True].get_input_embeddings().weight.shape[0])
    cuts = {
        "packed": (models[True], list(micro_batches(rows, args.micro_tokens, packed=True))),
        "padded, sorted": (models[False], list(micro_batches(rows, args.micro_tokens, packed=False))),
        "padded, in order": (models[False], list(in_order(rows, args.micro_tokens))),
    }
    tokens = sum(row.inputs for row in rows)
    lengths = [row.inputs for row in rows]
    print(f"{len(rows)} rollouts of {min(lengths)} to {max(lengths)} tokens, {tokens} in all")
    print(f"{'':18}{'padding':>9}{'scan, tokens/s':>16}{'ratio':>7}{'train, tokens/s':>17}{'ratio':>7}")
    taken: dict[tuple[str, bool], list[float]] = {}
    for _ in range(args.rounds + 1):
        for name, (model, cut) in cuts.items():
            for train in (False, True):
                taken.setdefault((name, train), []).append(seconds(model, cut, train=train))
    rate = {key: tokens / statistics.median(s[1:]) for key, s in taken.items()}
    for name, (model, cut) in cuts.items():
        padding = 1 - tokens / sum(tokens_read(c, packed=is_packed(model)) for c in cut)
        print(f"{name:18}{padding:9.1%}", end="")
        for train, width in ((False, 16), (True, 17)):
            print(f"{rate[name, train]:{width},.0f}{rate['packed', train] / rate[name, train]:7.2f}", end="")
        print()


if __name__ == "__main__":
    main()
