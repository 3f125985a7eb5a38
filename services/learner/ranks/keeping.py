"""A checkpoint by one process, or by all ranks together: rank 0 names and digests it, the others add their shards."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from services.learner.assemble import trainer_state
from services.learner.ranks.optimiser_shards import FOLDER, save_shards
from services.learner.ranks.sharded import meeting_all, trains_shards
from services.learner.step import Trainer
from services.learner.weights import checkpoint
from services.learner.weights.version_files import write_model
from shared.messages import Cursor
from shared.versions import Version


def save_checkpoint(
    root: Path, trainer: Trainer, companions: Mapping[str, bytes], version: Version, cursor: Cursor | None
) -> None:
    """`root`/step_<number>, whole when this returns on rank 0. Every rank calls it; the others have no companions.

    Where rank 0 cannot write it raises, and the others return.
    """
    ranks, step, state = trainer.ranks, version.number, trainer_state(trainer, version, cursor)
    if not trains_shards(trainer.model):
        if ranks.leads:
            checkpoint.save(root, step, lambda folder: write_model(trainer.model, companions, folder), state)
        return
    shards = root / f".shards-step_{step}"
    failed: OSError | None = None
    if ranks.leads:
        shutil.rmtree(shards, ignore_errors=True)
        try:
            shards.mkdir(parents=True)
        except OSError as error:
            failed = error
    if not ranks.tell(b"" if failed else b"the folder is there"):
        if failed:
            raise failed
        return
    try:
        save_shards(trainer.model, trainer.optimiser, shards, ranks)
    except CheckpointException as error:  # on every rank, whichever it was
        if ranks.leads:
            raise next(iter(error.failures.values()))[0] from None
        return

    def write(folder: Path) -> None:
        write_model(trainer.model, companions, folder)
        shards.rename(folder / FOLDER)

    if ranks.leads:
        with meeting_all(trainer.model):
            checkpoint.save(root, step, write, state)
    else:
        write_model(trainer.model, {}, root)
