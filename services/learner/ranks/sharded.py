"""A model that no rank holds whole: loaded, run and written in shards (FSDP2).

Parameters, gradients and optimiser state lie sharded by rows over the ranks, in float32. A layer is gathered, in the
model's dtype, while it runs. Files are read by slices and written one parameter at a time, so no process ever needs
room for more than its share, the layer that runs and the parameter that is written.

A frozen model lies in its dtype. Adapters that are put into it afterwards are small: each rank holds them whole, and
their gradients are added up over the ranks (`members.Ranks.add_up`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as read_distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from services.learner.model.policy import DEVICE, SCORED, prepare, score, told_of
from services.learner.ranks.members import Ranks
from services.learner.weights.digest_beside import DigestBeside
from services.learner.weights.model_writer import write_companions, written
from shared.adapters import has_adapters


def load_sharded(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
    *,
    packed: bool,
    offload: bool = False,
    frozen: bool = False,
) -> Any:
    """As `policy.load_policy`, this rank's shard of it. `dtype`: what layers compute in. `frozen`: none is trained.

    offload: shards, and with them the optimiser's state, lie in the processor's memory while their layer does not run.
    """
    import transformers

    with told_of(folder), _without_weights():
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model: Any = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype if frozen else torch.float32, attn_implementation="sdpa"
        )
    model.requires_grad_(not frozen)
    model.tie_weights()
    config.architectures = [type(model).__name__]  # the sharded class has another name
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    _shard(model, dtype, device, ranks, offload=offload)
    model.to_empty(device="cpu" if offload else device)
    for name, buffer in buffers.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer.to(device))
    with told_of(folder):
        reader = HuggingFaceStorageReader(str(folder))
        reader.read_metadata()  # what it raises further in is logged with a stack trace
    try:
        read_distributed(dict(model.named_parameters()), storage_reader=reader, process_group=ranks.group)
    except CheckpointException as error:  # a rank could not read; anything else is of a rank that has gone
        with told_of(folder):
            raise next(iter(error.failures.values()))[0] from None
    prepare(model, folder, packed=packed)
    return model


@contextmanager
def _without_weights() -> Iterator[None]:
    """Parameters of modules that are made meanwhile take no memory; buffers, which no file holds, are computed."""
    register = torch.nn.Module.register_parameter

    def on_meta(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        register(self, name, None if param is None else torch.nn.Parameter(param.to("meta")))

    torch.nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _shard(model: Any, dtype: torch.dtype, device: torch.device, ranks: Ranks, *, offload: bool) -> None:
    mesh = init_device_mesh(device.type, (ranks.count,))
    mixed = MixedPrecisionPolicy() if dtype == torch.float32 else MixedPrecisionPolicy(dtype, torch.float32)
    where = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()
    for part in (*model.base_model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=mixed, offload_policy=where, reshard_after_forward=True)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # losses are weighed over all ranks: their gradients add up
            part.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    model.headrace_dtype, model.headrace_ranks, model.headrace_gathered = dtype, ranks, 0  # for those who write it
    setattr(model, DEVICE, device)
    setattr(model, SCORED, MethodType(score, model))
    register_fsdp_forward_method(model, SCORED)


def trains_shards(model: Any) -> bool:
    """Whether this process holds a shard only of what is trained, which all ranks then write together."""
    return isinstance(model, FSDPModule) and not has_adapters(model)


def write_sharded(
    model: Any, folder: Path, companions: Mapping[str, bytes], digest: DigestBeside | None = None
) -> None:
    """config.json, `companions` and model.safetensors. Every rank calls it, rank 0 writes, one parameter at a time, of
    which `digest` hears.

    Where rank 0 cannot write it still takes part in the gathering, and raises at the end.
    """
    dtype, ranks = model.headrace_dtype, model.headrace_ranks
    shapes = {name: (tuple(p.shape), dtype) for name, p in model.named_parameters()}
    writing = written(folder / "model.safetensors", shapes, digest) if ranks.leads else None
    error: OSError | None = None
    try:
        if writing:
            model.config.dtype = dtype
            model.config.save_pretrained(folder)
            write_companions(folder, companions)
            next(writing)
    except OSError as failed:
        error = failed
    for tensor in gathered(model):
        if writing and not error:
            try:
                writing.send(tensor.to("cpu", dtype))
            except OSError as failed:
                error = failed
    if writing:
        writing.close()
    if error:
        raise error


@contextmanager
def meeting_all(model: Any) -> Iterator[None]:
    """Around what rank 0 writes: where it fails before it gathers the model, for which the others wait, it does so."""
    before = getattr(model, "headrace_gathered", 0)
    try:
        yield
    except OSError:
        if trains_shards(model) and model.headrace_gathered == before:
            for _ in gathered(model):
                pass
        raise


def gathered(model: Any) -> Iterator[Tensor]:
    """Every parameter whole, in order, one after the other; tied ones once."""
    model.headrace_gathered += 1
    for parameter in model.parameters():
        data = parameter.detach()
        yield data.full_tensor() if isinstance(data, DTensor) else data
