"""The files of a version on the shared folder: written, and deleted when nobody needs them any more."""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from services.learner.model.lora import write_adapters
from services.learner.ranks.sharded import trains_shards, write_sharded
from services.learner.weights.digest_beside import DigestBeside
from services.learner.weights.model_writer import write_companions, write_plain
from shared import heartbeats, weights
from shared.adapters import has_adapters
from shared.messages import CanarySequence, WeightsNotice
from shared.streams import Keys
from shared.versions import Version

log = logging.getLogger("headrace")

ALWAYS_KEPT = 2  # the newest version, and the one that actors are just leaving


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
