"""A checkpoint by one process, or by all ranks together: rank 0 names and digests it, the others add their shards."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from services.learner.assemble import trainer_state
from services.learner.ranks.optimiser_shards import FOLDER, save_shards
from services.learner.ranks.sharded import is_sharded
from services.learner.step import Trainer
from services.learner.weights import checkpoint
from services.learner.weights.publish import write_model
from shared.messages import Cursor


def save_checkpoint(
    root: Path, trainer: Trainer, companions: Mapping[str, bytes], step: int, lineage: int, cursor: Cursor | None
) -> None:
    """`root`/step_<step>, whole when this returns on rank 0. Every rank calls it; the others have no companions."""
    ranks, state = trainer.ranks, trainer_state(trainer, step, lineage, cursor)
    if not is_sharded(trainer.model):
        checkpoint.save(root, step, lambda folder: write_model(trainer.model, companions, folder), state)
        return
    shards = root / f".shards-step_{step}"
    if ranks.leads:
        shutil.rmtree(shards, ignore_errors=True)
        shards.mkdir(parents=True)
    ranks.tell()  # the folder is there
    save_shards(trainer.model, trainer.optimiser, shards, ranks)

    def write(folder: Path) -> None:
        write_model(trainer.model, companions, folder)
        shards.rename(folder / FOLDER)

    if ranks.leads:
        checkpoint.save(root, step, write, state)
    else:
        write_model(trainer.model, {}, root)
