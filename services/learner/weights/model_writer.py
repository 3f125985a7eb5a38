"""A model's files, one parameter at a time: beside the model there is never more than the parameter that is written.

Files may hold another type than the model computes in. What is then announced of them is what a model loaded from
them computes: `as_written` rounds the weights for a while, a layer at a time.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.learner.weights.digest_beside import DigestBeside

_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
_ROWS = 1024  # of a matrix, rounded at a time: the whole in both types beside the original would be half as much again


def write_plain(
    model: Any,
    folder: Path,
    dtype: torch.dtype | None = None,
    companions: Mapping[str, bytes] | None = None,
    digest: DigestBeside | None = None,
) -> None:
    """config.json and model.safetensors of a model that this process holds whole; `dtype`: None as it is.

    `companions` come before the weights, and take the place of the model's own; `digest` hears of what is written.
    """
    before = model.config.dtype
    model.config.dtype = dtype or model.dtype
    try:
        if not _is_plainly_named(model):  # transformers alone knows how its parameters are called in files
            state = {n: t.to("cpu", dtype) for n, t in model.state_dict().items()} if dtype else None
            model.save_pretrained(folder, state_dict=state)
            write_companions(folder, companions or {})
            return
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
    finally:
        model.config.dtype = before
    write_companions(folder, companions or {})
    parameters = dict(model.named_parameters())
    shapes = {name: (tuple(p.shape), dtype or p.dtype) for name, p in parameters.items()}
    writing = written(folder / "model.safetensors", shapes, digest)
    next(writing)
    for name, parameter in parameters.items():
        writing.send(parameter.detach().to("cpu", shapes[name][1]))
    writing.close()


def write_companions(folder: Path, companions: Mapping[str, bytes]) -> None:
    """What lies beside the weights (`model_files.read_companions`)."""
    for name, content in companions.items():
        (folder / name).write_bytes(content)


def written(
    path: Path, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], digest: DigestBeside | None = None
) -> Generator[None, Tensor, None]:
    """A safetensors file that takes its tensors one by one, on the CPU, in the order of `shapes` and of these types."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, dtype) in shapes.items():
        size = dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": _SAFETENSORS_NAMES[dtype], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    start = len(text).to_bytes(8, "little") + text
    with path.open("wb") as file, digest.written(path, len(start) + at) if digest else nullcontext() as digested:
        data = memoryview(start)
        while True:
            adding = digested(data) if digested else None
            file.write(data)
            if adding:
                adding.result()  # so that no more than one parameter is held
            data = (yield).contiguous().view(torch.uint8).numpy().data


@contextmanager
def as_written(model: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Meanwhile the model computes as one that was loaded from files of `dtype`. Not for training."""
    if dtype is None or dtype.itemsize >= model.dtype.itemsize:
        yield
        return
    layers: list[Any] = list(getattr(model.base_model, "layers", ()))
    inside = {id(p) for layer in layers for p in layer.parameters()}
    originals: dict[Any, list[Tensor]] = {}

    def put(owner: Any, parameters: list[Any]) -> None:
        originals[owner] = [p.data for p in parameters]
        for p in parameters:
            p.data = _rounded(p.data, dtype)

    def take_back(owner: Any, parameters: list[Any]) -> None:
        for p, data in zip(parameters, originals.pop(owner), strict=True):
            p.data = data

    hooks = []
    for layer in layers:
        own = list(layer.parameters())
        hooks.append(layer.register_forward_pre_hook(lambda m, _, own=own: put(m, own)))
        hooks.append(layer.register_forward_hook(lambda m, *_, own=own: take_back(m, own), always_call=True))
    outside = [p for p in model.parameters() if id(p) not in inside]  # embeddings, read past their modules too
    put(model, outside)
    try:
        yield
    finally:
        take_back(model, outside)
        for hook in hooks:
            hook.remove()


def _rounded(data: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty_like(data)
    for to, part in zip(out.split(_ROWS), data.split(_ROWS), strict=True):
        to.copy_(part.to(dtype))
    return out


def _is_plainly_named(model: Any) -> bool:
    """Whether the files have the names and tensors of `named_parameters`, tied ones once."""
    names = {name for name, _ in model.named_parameters()}
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    converted = getattr(model, "_weight_conversions", None) or getattr(model, "_keys_to_ignore_on_save", None)
    return not converted and set(model.state_dict()) - tied == names - tied
