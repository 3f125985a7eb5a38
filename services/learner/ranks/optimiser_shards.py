"""The optimiser's state in a checkpoint, by parameter name: each rank writes its shards, any number reads them.

    step_20/trainer/   shard-00001-model-00001-of-00001.safetensors   one a rank, with the place of each piece

Written and read by torch's distributed checkpoints in their safetensors form, which needs no pickle. A learner of one
process keeps its whole optimiser in `trainer_state.pt` instead; either form is read by any number of ranks.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_distributed
from torch.distributed.checkpoint.state_dict_saver import save as write_distributed
from torch.distributed.tensor import DTensor, distribute_tensor

from services.learner.model.optimise import Optimiser
from services.learner.ranks.members import Ranks
from services.learner.ranks.sharded import trains_shards

FOLDER = "trainer"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_shards(model: Any, optimiser: Optimiser, folder: Path, ranks: Ranks) -> None:
    """Write moments and float32 weights. Every rank calls it; `folder` is there."""
    _make_state(optimiser)  # where no update has moved anything yet
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    tensors = {f"{kind}.{name}": t for kind, of in _state(model, optimiser).items() for name, t in of.items()}
    write_distributed(tensors, storage_writer=writer, process_group=ranks.group)


def load_optimiser(model: Any, optimiser: Optimiser, folder: Path, stored: dict[str, Any], ranks: Ranks) -> None:
    """Continue from a checkpoint's state: `stored` is what `trainer_state.pt` holds of the optimiser."""
    optimiser.check_kind(stored)
    shards, alone = "steps" in stored, ranks.count == 1
    if not shards and not trains_shards(model):
        optimiser.load(stored)
        return
    _make_state(optimiser)
    state = _state(model, optimiser)
    if shards:
        tensors = {f"{kind}.{name}": t for kind, of in state.items() for name, t in of.items()}
        reader = HuggingFaceStorageReader(str(folder / FOLDER))
        read_distributed(tensors, storage_reader=reader, process_group=ranks.group, no_dist=alone)
        steps = torch.tensor(float(stored["steps"]))
    else:
        steps = _take_whole(state, stored, optimiser)
    for values in optimiser.adamw.state.values():
        values["step"].copy_(steps)


def steps_taken(optimiser: Optimiser) -> int:
    """By the optimiser since its beginning."""
    return int(next((v["step"] for v in optimiser.adamw.state.values()), torch.tensor(0)))


def _state(model: Any, optimiser: Optimiser) -> dict[str, dict[str, Tensor]]:
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    pairs = list(zip(names, optimiser.masters, strict=True))
    out: dict[str, dict[str, Tensor]] = {"master": {name: master.detach() for name, master in pairs}}
    for kind in _MOMENTS:
        out[kind] = {name: optimiser.adamw.state[m][kind] for name, m in pairs if m in optimiser.adamw.state}
    return out


def _make_state(optimiser: Optimiser) -> None:
    """As AdamW does at its first step, where it has not."""
    for master in optimiser.masters:
        if not (state := optimiser.adamw.state[master]):
            state |= {"step": torch.tensor(0.0), **{kind: torch.zeros_like(master) for kind in _MOMENTS}}


def _take_whole(state: dict[str, dict[str, Tensor]], stored: dict[str, Any], optimiser: Optimiser) -> Tensor:
    """Cut what one process saved into this rank's shards; returns the steps taken."""
    order = [m for group in optimiser.adamw.param_groups for m in group["params"]]  # AdamW's own numbers
    number = {m: i for i, m in enumerate(order)}
    saved = stored["adamw"]["state"]
    steps = torch.tensor(0.0)
    for i, (name, master) in enumerate(zip(state["master"], optimiser.masters, strict=True)):
        if stored["masters"]:
            _cut(stored["masters"][i], state["master"][name])
        if number[master] in saved:
            for kind in _MOMENTS:
                _cut(saved[number[master]][kind], state[kind][name])
            steps = saved[number[master]]["step"]
    return steps


def _cut(whole: Tensor, shard: Tensor) -> None:
    assert isinstance(shard, DTensor)
    own = distribute_tensor(whole.to(shard.device), shard.device_mesh, shard.placements, src_data_rank=None)
    shard.to_local().copy_(own.to_local())
