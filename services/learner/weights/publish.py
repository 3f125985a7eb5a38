"""Publishing a version: files on the shared folder, a canary that proves them, and which old versions may go.

The canary's log-probabilities are those of the model that was written, at temperature 1; an actor computes them again
with what it loaded and refuses the version when they differ.
"""

import logging
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.learner.groups.group import Group, Row
from services.learner.model.lora import write_adapters
from services.learner.model.policy import device_of, logprobs, vocabulary_of
from services.learner.ranks.sharded import trains_shards, write_sharded
from services.learner.weights.digest_beside import DigestBeside
from services.learner.weights.model_writer import write_companions, write_plain
from shared import heartbeats, weights
from shared.adapters import has_adapters
from shared.messages import CanarySequence, WeightsNotice
from shared.streams import Keys
from shared.versions import Version

log = logging.getLogger("headrace")

NOTICES_KEPT = 16
ALWAYS_KEPT = 2  # the newest version, and the one that actors are just leaving
_FIRST_CANARY_TOKENS = 32
_CANARY_TOKENS_AT_ONCE = 2048  # in one forward, which takes a large model as long as one sequence does


def write_model(
    model: Any,
    companions: Mapping[str, bytes],
    folder: Path,
    dtype: torch.dtype | None = None,
    digest: DigestBeside | None = None,
) -> None:
    """config.json and safetensors (tied tensors once), and `companions` as they are: tokenizer, generation settings.

    Of a model with adapters only these. `dtype`: of a whole model's files; None as it is. `digest` hears the weights.
    Of one that is trained in shards all ranks call it; those that do not lead have no companions and need no folder.
    """
    if trains_shards(model):
        write_sharded(model, folder, companions, digest)
    elif has_adapters(model):
        write_adapters(model, folder)
        write_companions(folder, companions)
    else:
        write_plain(model, folder, dtype, companions, digest)


def publish(
    root: Path,
    version: Version,
    model: Any,
    companions: Mapping[str, bytes],
    canary: Sequence[CanarySequence],
    dtype: torch.dtype | None = None,
) -> WeightsNotice:
    """Write the version's folder; the notice is the caller's to send. Adapters go without companions, the base's."""
    companions = {} if has_adapters(model) else companions
    beside = DigestBeside()
    folder, digest, size = weights.publish(
        root, version, lambda target: write_model(model, companions, target, dtype, beside), beside.of
    )
    return WeightsNotice(
        version=version,
        location=folder.name,
        digest=digest,
        size=size,
        published=time.time(),
        canary=list(canary),
    )


def canary_of(model: Any, sequences: Iterable[Sequence[int]]) -> list[CanarySequence]:
    """Score token sequences (each of at least two) under the model as it stands."""
    every = [Row(np.asarray(tokens, np.int64), np.arange(1, len(tokens)), 0) for tokens in sequences]
    together = max(1, _CANARY_TOKENS_AT_ONCE // max((row.inputs for row in every), default=1))
    out = []
    for at in range(0, len(every), together):
        rows = every[at : at + together]
        with torch.no_grad():
            scores = logprobs(model, rows, temperature=1.0).cpu().split([row.inputs for row in rows])
        out += [
            CanarySequence(tokens=row.tokens.tolist(), start=1, logprobs=own.tolist())
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
    for _ in range(max(2, min(tokens, _FIRST_CANARY_TOKENS)) - 1):
        probabilities = model(input_ids=ids, use_cache=False).logits[:, -1].float().softmax(-1).cpu()
        ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator).to(device)], dim=1)
    return ids.tolist()


def versions_in_use(client: Any, keys: Keys, fields: Sequence[str] = heartbeats.VERSIONS) -> set[Version]:
    """The versions that live actors report in their heartbeats: in force, or just being read."""
    return heartbeats.versions(heartbeats.known(client, keys).values(), fields)


def delete_unused(root: Path, in_use: set[Version]) -> None:
    """Delete all but the newest two and those in use. One that cannot be deleted stays, with a word in the log."""
    for version in weights.published(root)[:-ALWAYS_KEPT]:
        if version not in in_use:
            try:
                weights.delete(root, version)
            except OSError as error:
                log.warning("an old version is not deleted: %s", error)


def clear_unfinished(root: Path) -> None:
    """Remove what a learner that was killed left half-written or half-deleted; there is one learner to a folder."""
    for leftover in root.glob(".*v[0-9]*"):
        shutil.rmtree(leftover, ignore_errors=True)
