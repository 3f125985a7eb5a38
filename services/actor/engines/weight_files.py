"""The tensors of a published version, verified while they are read: a byte is read once, into where it stays, and a
tensor is digested while the next is read. No file is mapped: one that a shared folder has lost would end the process.
"""

import json
import math
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path

import torch
from blake3 import blake3

from services.actor.engines.engine import CanaryRefused
from shared import weights
from shared.errors import UserError
from shared.model_files import LARGEST_HEADER

_PIECE = 2**20  # bytes
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

Place = Callable[[str, torch.Tensor], torch.Tensor]


def read_verified(directory: Path, digest: str, place: Place) -> dict[str, torch.Tensor]:
    """The tensors of all its safetensors files by name, each as `place(name, tensor)` puts it once it is read.

    Raises CanaryRefused where the files are not those of `digest`, or hold no weights.
    """
    state: dict[str, torch.Tensor] = {}
    faults: list[str] = []

    def take(hasher: blake3, file: Path) -> None:
        if file.suffix != ".safetensors" or file.parent != directory:
            weights.update_from(hasher, file)
            return
        with file.open("rb") as stream, ThreadPoolExecutor(1) as pool:
            adding: Future[blake3] | None = None
            try:
                for name, dtype, shape in _layout(stream, hasher):
                    data = torch.empty(math.prod(shape) * dtype.itemsize, dtype=torch.uint8)
                    count = stream.readinto(data.numpy().data)
                    if adding:
                        adding.result()
                    adding = pool.submit(hasher.update, data.numpy().data[:count])
                    if count < len(data):
                        raise _Damaged("it has become shorter")
                    state[name] = place(name, data.view(dtype).view(shape))
            except _Damaged as error:
                faults.append(f"{file}: {error}")
                while rest := stream.read(_PIECE):  # what is damaged has another digest, and that is said first
                    hasher.update(rest)

    try:
        weights.verify(directory, digest, take)
    except (UserError, OSError) as error:
        raise CanaryRefused(str(error)) from None
    if faults or not state:
        raise CanaryRefused("; ".join(faults) or f"{directory} holds no safetensors file")
    return state


class _Damaged(ValueError):
    """No safetensors file."""


def _layout(stream: BufferedReader, hasher: blake3) -> list[tuple[str, torch.dtype, torch.Size]]:
    """(name, type, shape) of what follows, in order, without a gap up to the end of the file."""
    start = stream.read(8)
    hasher.update(start)
    header = stream.read(min(int.from_bytes(start, "little"), LARGEST_HEADER))
    hasher.update(header)
    layout, at = [], 0
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (begin, end) = _TYPES[entry["dtype"]], torch.Size(entry["shape"]), entry["data_offsets"]
            size = math.prod(shape) * dtype.itemsize
            if (begin, end) != (at, at + size) or min(shape, default=0) < 0:
                raise ValueError(f"{name} is not where it should be")
            layout.append((name, dtype, shape))
            at += size
        if len(start) + len(header) + at != os.fstat(stream.fileno()).st_size:
            raise ValueError("its tensors do not fill it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Damaged(f"its header cannot be used ({type(error).__name__}: {error})") from None
    return layout
