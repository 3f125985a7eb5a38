"""A canary proves the files of a version: log-probabilities of the model that was written, at temperature 1.

An actor computes them again with what it loaded, and refuses the version where they differ.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from services.learner.groups.group import Group, Row
from services.learner.model.policy import computes_in, device_of, logprobs, vocabulary_of
from shared.messages import CanarySequence

_FIRST_TOKENS = 32
_TOKENS_AT_ONCE = 2048  # in one forward, which takes a large model as long as one sequence does


def canary_of(model: Any, sequences: Iterable[Sequence[int]]) -> list[CanarySequence]:
    """Score token sequences (each of at least two) under the model as it stands."""
    every = [Row(np.asarray(tokens, np.int64), np.arange(1, len(tokens)), 0) for tokens in sequences]
    dtype = str(computes_in(model)).removeprefix("torch.")
    together = max(1, _TOKENS_AT_ONCE // max((row.inputs for row in every), default=1))
    out = []
    for at in range(0, len(every), together):
        rows = every[at : at + together]
        with torch.no_grad():
            scores = logprobs(model, rows, temperature=1.0).cpu().split([row.inputs for row in rows])
        out += [
            CanarySequence(tokens=row.tokens.tolist(), start=1, logprobs=own.tolist(), dtype=dtype)
            for row, own in zip(rows, scores, strict=True)
        ]
    return out


def stored_sequences(groups: Sequence[Group], count: int, tokens: int) -> list[list[int]]:
    """The ends of `count` stored rollouts, the last groups' first: what actors really read and write."""
    ends = [g.canary_tokens[-max(tokens, 2) :].tolist() for g in reversed(groups)]
    return [e for e in ends if len(e) >= 2][:count]


@torch.no_grad()
def sampled_sequences(model: Any, count: int, tokens: int) -> list[list[int]]:
    """Before any group is trained: short texts the model samples from itself, the same ones every time."""
    if count == 0:
        return []
    generator = torch.Generator().manual_seed(0)
    device = device_of(model)
    starts = torch.randint(vocabulary_of(model), (count, 1), generator=generator)
    ids = starts.to(device)
    for _ in range(max(2, min(tokens, _FIRST_TOKENS)) - 1):
        probabilities = model(input_ids=ids, use_cache=False).logits[:, -1].float().softmax(-1).cpu()
        ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator).to(device)], dim=1)
    return ids.tolist()
