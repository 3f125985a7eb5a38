"""Tensors that are verified while they are read, against safetensors' own reader; and files that are none."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.actor.engines.engine import CanaryRefused
from services.actor.engines.weight_files import read_verified
from shared.weights import MANIFEST, digest_of

TENSORS = {
    "large": torch.randn(700, 1000),
    "half": torch.randn(3, 5).to(torch.bfloat16),
    "scalar": torch.tensor(4.5),
    "empty": torch.empty(0, 7),
    "flags": torch.tensor([True, False, True]),
    "count": torch.arange(3),
}


def as_it_is(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of weights, others before, between and behind them, and a folder in which lie no weights."""
    (tmp_path / "old").mkdir()
    save_file({"large": torch.zeros(2)}, tmp_path / "old" / "model.safetensors")
    for name in ("config.json", "n.json", "tokenizer.json", MANIFEST):
        (tmp_path / name).write_text("{}")
    few = {name: TENSORS[name] for name in ("flags", "half")}
    save_file({n: t for n, t in TENSORS.items() if n not in few}, tmp_path / "model.safetensors", {"format": "pt"})
    save_file(few, tmp_path / "o.safetensors")
    return tmp_path


def test_what_is_read_is_what_safetensors_reads(folder: Path) -> None:
    read = read_verified(folder, digest_of(folder)[0], as_it_is)
    theirs = load_file(folder / "model.safetensors") | load_file(folder / "o.safetensors")
    assert read.keys() == theirs.keys() == TENSORS.keys()
    for name, tensor in read.items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", "old/model.safetensors"])
@pytest.mark.parametrize("where", ["first", "last", "shorter", "longer", "gone"])
def test_any_other_byte_is_told_by_the_digest(folder: Path, file: str, where: str) -> None:
    digest, path = digest_of(folder)[0], folder / file
    data = bytearray(path.read_bytes())
    place = {"first": 0, "last": -1}.get(where)
    if place is not None:
        data[place] ^= 1
    path.write_bytes(data[:-1] if where == "shorter" else data + b"x" if where == "longer" else data)
    if where == "gone":
        path.unlink()
    with pytest.raises(CanaryRefused, match="digest"):
        read_verified(folder, digest, as_it_is)


def entry(kind: object = "F32", shape: object = (2,), at: object = (0, 8)) -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": at}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 10**5,
        *(
            json.dumps(entries).encode()
            for entries in (
                {},
                {"a": 1},
                {"a": {}},
                {"a": entry("F4")},
                {"a": entry([])},
                {"a": entry(shape=[3])},
                {"a": entry(shape=[2.0])},
                {"a": entry(shape=[-1, -2])},
                {"a": entry(shape="ab")},
                {"a": entry(shape=[2**62, 2**62], at=[0, 2**126])},
                {"a": entry(at=[4, 12])},
                {"a": entry(at=[0, "8"])},
                {"a": entry(at=[0])},
                {"a": entry(shape=[1], at=[0, 4])},
                {"a": entry(), "b": entry()},
            )
        ),
    ],
)
@pytest.mark.parametrize("stated", ["right", "huge"])
def test_a_file_that_is_no_safetensors_is_refused_though_its_digest_is_right(
    tmp_path: Path, header: bytes, stated: str
) -> None:
    size = len(header) if stated == "right" else 2**63
    (tmp_path / "model.safetensors").write_bytes(size.to_bytes(8, "little") + header + os.urandom(8))
    with pytest.raises(CanaryRefused, match="header cannot be used"):
        read_verified(tmp_path, digest_of(tmp_path)[0], as_it_is)
