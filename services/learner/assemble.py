"""Putting a learner together: the newest checkpoint or the configured model, the optimiser, the random state."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from services.learner.clock import Clock
from services.learner.groups.reader import GroupReader
from services.learner.model.lora import WithoutAdapters, adapt, load_adapters
from services.learner.model.optimise import Optimiser
from services.learner.model.policy import (
    context_of,
    load_policy,
    pick_device,
    pick_dtype,
    recompute_layers,
    vocabulary_of,
)
from services.learner.ranks.members import ALONE, Ranks
from services.learner.ranks.optimiser_shards import load_optimiser, steps_taken
from services.learner.ranks.sharded import load_sharded, trains_shards
from services.learner.statistics import Scores
from services.learner.step import Trainer
from services.learner.stop import Stop
from services.learner.weights import checkpoint
from services.learner.weights.model_files import ids_of, read_companions
from shared.adapters import CONFIG as ADAPTERS
from shared.config import Config
from shared.cores import available, thread_shares
from shared.errors import UserError
from shared.messages import Cursor
from shared.model_files import find_model
from shared.streams import Keys
from shared.versions import Version

log = logging.getLogger("headrace")


@dataclass(frozen=True)
class Assembled:
    """`step`: steps trained already. `lineage`: the one that trained them, -1 when there are none. `cursor`: as of
    `step`.
    """

    trainer: Trainer
    companions: dict[str, bytes]
    step: int
    lineage: int
    cursor: Cursor | None


def assemble(config: Config, stop: Stop, ranks: Ranks = ALONE) -> Assembled:
    """Load everything a learner needs. Raises UserError for what the user can mend."""
    device = pick_device(config.learner.device)
    if device.type == "cpu":
        torch.set_num_threads(thread_shares(config, len(available()))[0])
    torch.manual_seed(config.run.seed)

    if ranks.leads:
        checkpoint.tidy(config.checkpoints_dir)
    # one rank reads all of it to see whether it is whole, and they resume from the same one
    found = checkpoint.newest(config.checkpoints_dir, stop.wait) if ranks.leads else None
    name = ranks.all(found[0].name.encode() if found else b"")[0].decode()
    if name and not found:
        found = checkpoint.read(config.checkpoints_dir / name, stop.wait)
    adapted = config.learner.lora_rank > 0
    folder = found[0] if found and not adapted else find_model(config.model.path)
    if found and not adapted and (folder / ADAPTERS).is_file():
        raise UserError(f"{folder} holds adapters and learner.lora_rank is 0: set it back, or start a new run.")
    dtype = pick_dtype(config.model.dtype, device)
    model = _load(config, folder, dtype, device, ranks, frozen=adapted)
    if adapted:
        adapt(model, config.learner, folder, config.model.path)
        if found:
            load_adapters(model, found[0])
    if config.learner.recompute:
        recompute_layers(model)
    frozen = WithoutAdapters(model) if adapted and config.learner.kl > 0 else None
    if config.learner.kl > 0 and config.model.kl_reference:
        fixed = find_model(config.model.kl_reference, "model.kl_reference")
        frozen = _load(config, fixed, dtype, device, ranks, frozen=True)
        frozen.requires_grad_(False)
        has, rows = vocabulary_of(frozen), vocabulary_of(model)
        if has < (needs := min(rows, ids_of(folder) or rows)):
            raise UserError(
                f"model.kl_reference = '{config.model.kl_reference}' has a vocabulary of {has} tokens and the policy "
                f"one of {needs}: name a model with the policy's tokenizer."
            )
    optimiser = Optimiser(model.parameters(), config.learner, config.run.steps)
    step, lineage, cursor = 0, -1, None
    if found:
        state = found[1]
        load_optimiser(model, optimiser, found[0], state["optimiser"], ranks)
        torch.set_rng_state(state["rng"])
        step, lineage = state["step"], state["lineage"]
        cursor = msgspec.convert(state.get("cursor"), Cursor | None)
        log.info("resuming at step %d from %s", step, found[0])
    longest = config.learner.denominator_tokens or config.rollout.max_tokens
    trainer = Trainer(
        model=model,
        frozen=frozen,
        optimiser=optimiser,
        settings=config.learner.model_copy(update={"denominator_tokens": longest}),
        temperature=config.rollout.temperature,
        clock=Clock(),
        stop=stop,
        scores=Scores(drift=config.replay.drift, headroom=config.replay.headroom),
        ranks=ranks,
    )
    return Assembled(trainer, read_companions(folder), step, lineage, cursor)


def reader(config: Config, client: Any, trainer: Trainer) -> GroupReader:
    """Of the run's groups, as this rank's part of the model takes them; ranks share the memory that is given to it.

    What can be asked for again are groups that replay stores, and a step's own, which enter when it is done. A token id
    of padding that the policy has a row for, and the KL term's model none, could not be scored.
    """
    models = [model for model in (trainer.model, trainer.frozen) if model is not None]
    return GroupReader(
        client,
        Keys(config.run.name),
        config.run.name,
        cache_groups=config.replay.capacity + config.learner.batch,
        cache_bytes=config.learner.cache_bytes // trainer.ranks.count,
        vocabulary=min(map(vocabulary_of, models)),
        context=context_of(trainer.model),
    )


def trainer_state(trainer: Trainer, version: Version, cursor: Cursor | None) -> dict[str, Any]:
    """What a checkpoint holds beside the model."""
    counts = {"step": version.number, "lineage": version.lineage, "cursor": msgspec.to_builtins(cursor)}
    shards = trains_shards(trainer.model)
    optimiser = {"steps": steps_taken(trainer.optimiser)} if shards else trainer.optimiser.state()
    return counts | {"optimiser": optimiser, "rng": torch.get_rng_state()}


def _load(config: Config, folder: Path, dtype: torch.dtype, device: torch.device, ranks: Ranks, *, frozen: bool) -> Any:
    if ranks.count == 1:
        return load_policy(folder, dtype, device, packed=config.learner.packed)
    s = config.learner
    return load_sharded(folder, dtype, device, ranks, packed=s.packed, offload=s.offload, frozen=frozen)
