"""Folders that others wrote: indexes, checkpoints, adapters, safetensors, and the contents of a version in Redis."""

import io
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import save

from services.env_search.app import render
from services.env_search.backend import IndexSpec
from services.env_search.batcher import search_keys
from services.env_search.index import OpenIndex, build_index, open_index
from services.learner.weights import checkpoint
from shared import adapters, model_files, weights
from shared.checkpoints import STATE
from shared.errors import UserError
from shared.transports import broadcast, chunks, delta
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_FLOAT, ANY_INT, CLAIMS, JSON, near

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
CORPUS, INDEX = FOLDER / "corpus.jsonl", FOLDER / "index"
QUERIES = ["water wheel", "7 search", "7", "unknown"]
_STRANGE = [b"[" * 2000, b'{"a":' * 2000, b"\xff" * 8, b"1" * 5000, b"NaN", b"null", b"[]", b"\x00", b"\\ud800"]


@st.composite
def altered(draw: st.DrawFn, valid: Any) -> Any:
    """One place of a tree of dictionaries and lists is another value, or is gone."""
    if not isinstance(valid, dict | list) or not valid or draw(st.integers(0, 3)) == 0:
        return draw(JSON)
    out: Any = valid.copy()
    place = draw(st.sampled_from(sorted(valid) if isinstance(valid, dict) else range(len(valid))))
    if draw(st.integers(0, 5)) == 0:
        del out[place]
    else:
        out[place] = draw(altered(valid[place]))
    return out


def json_like(valid: Any) -> st.SearchStrategy[bytes]:
    """JSON in which something else stands, or nearly JSON."""
    data = json.dumps(valid).encode()
    return st.just(data) | near(st.just(data), _STRANGE) | altered(valid).map(lambda value: json.dumps(value).encode())


def _msgpack(valid: Any) -> st.SearchStrategy[bytes]:
    def encoded(value: Any) -> bytes:
        try:
            return msgspec.msgpack.encode(value)
        except (OverflowError, UnicodeEncodeError):
            return b""

    data = encoded(valid)
    return st.just(data) | near(st.just(data), CLAIMS) | altered(msgspec.to_builtins(valid)).map(encoded)


def _taken(read: Callable[[], object]) -> bool:
    try:
        read()
    except UserError as error:
        assert str(error).strip()
        return False
    return True


@cache
def _index() -> dict[str, bytes]:
    rows = [{"id": str(i), "contents": f'"T{i}"\nwater wheel {i} search'} for i in range(20)]
    CORPUS.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(CORPUS, INDEX, IndexSpec())
    return {str(file.relative_to(INDEX)): file.read_bytes() for file in INDEX.rglob("*") if file.is_file()}


@st.composite
def indexes(draw: st.DrawFn) -> tuple[str, bytes]:
    """One file of an index, and what it holds instead."""
    name = draw(st.sampled_from(sorted(_index())))
    data = _index()[name]
    if name.endswith(".json"):
        return name, draw(json_like(json.loads(data)))
    return name, draw(near(st.just(data), _STRANGE) | arrays_like(data))


@st.composite
def arrays_like(draw: st.DrawFn, valid: bytes) -> bytes:
    """A .npy file of the type of this one, with other values in a few places, or in all, or another number of them."""
    values = np.load(io.BytesIO(valid))
    numbers = ANY_FLOAT if values.dtype.kind == "f" else ANY_INT
    for at in draw(st.lists(st.integers(0, len(values) - 1), max_size=4)) or [slice(None)]:
        with np.errstate(over="ignore"):
            values[at] = np.array(draw(numbers)).astype(values.dtype)
    out = io.BytesIO()
    np.save(out, values[: draw(st.sampled_from([len(values)] * 3 + [0, 1, len(values) - 1]))])
    return out.getvalue()


def check_index(case: tuple[str, bytes]) -> bool:
    """True where it opens. A search in what is false may fail then, which its asker is told; it ends in time, and
    leaves nothing behind: the same queries find the same again.
    """
    shutil.rmtree(INDEX)  # never written over: it is mapped
    for name, data in (_index() | dict([case])).items():
        (INDEX / name).parent.mkdir(parents=True, exist_ok=True)
        (INDEX / name).write_bytes(data)

    def use() -> None:
        opened = open_index(CORPUS, INDEX, IndexSpec())
        assert [_found(opened, query) for query in QUERIES] == [_found(opened, query) for query in QUERIES]

    return _taken(use)


def _found(opened: OpenIndex, query: str) -> bytes | None:
    """None where it failed, as it may: the batcher gives the error to who asked."""
    try:
        return render(opened.corpus, search_keys(opened.backend, [(query, 3)]), return_scores=True)
    except (LookupError, ValueError, TypeError, MemoryError):
        return None


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """(trainer_state.pt, manifest)"""
    state, manifest = io.BytesIO(), {"step": 1, "digest": "d", "size": 3}
    torch.save({"step": 1, "optimiser": {"a": torch.zeros(3)}, "cursor": None}, state)
    return draw(near(st.just(state.getvalue()), _STRANGE)), draw(json_like(manifest))


def check_checkpoint(case: tuple[bytes, bytes]) -> bool:
    """True where the state is read."""
    folder = FOLDER / "step_1"
    folder.mkdir(exist_ok=True)
    for name, data in zip((STATE, weights.MANIFEST), case, strict=True):
        (folder / name).write_bytes(data)
    _taken(lambda: checkpoint.newest(FOLDER, wait=lambda _: None))
    weights.digest_in(folder)
    return _taken(lambda: checkpoint.read(folder, wait=lambda _: None))


_MODEL = save({"a": torch.zeros(2, 3), "b": torch.ones(4)})
_HEADER = json.loads(_MODEL[8 : 8 + int.from_bytes(_MODEL[:8], "little")])
_BASE = {"base": str(FOLDER / "nowhere"), "digest": "d"}
_CONFIG = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}


def check_adapters(case: tuple[bytes, bytes, bytes]) -> bool:
    """True where the settings that made them are known; the base is nowhere."""
    folder, (header, base, config) = FOLDER / "adapters", case
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / adapters.BASE).write_bytes(base)
    (folder / adapters.CONFIG).write_bytes(config)
    assert type(model_files.parameters_of(folder)) is int
    assert not _taken(lambda: adapters.base_of(folder))
    return _taken(lambda: adapters.settings_of(folder))


_CONTENTS = chunks.Contents("d", [chunks.File("model.safetensors", chunks.CHUNK + 5, [b"a" * 32, b"b" * 32])])
_ROUND = broadcast.Round("127.0.0.1", 1, 1, 2, "gloo", "v", "d", [("a", 3)], 2**24, 3.0)
_CHUNK = bytes(range(256)) * 16
_CHANGE = delta.compress(b"!" + _CHUNK[1:], _CHUNK) or b""


def check_contents(case: tuple[bytes, bytes, bytes]) -> bool:
    """True where every chunk has its place in the folder of the version."""
    contents, change, letter = case
    _taken(lambda: broadcast.decode(letter, broadcast.Round))
    try:
        assert len(delta.expand(change, _CHUNK)) == len(_CHUNK)
    except ValueError as error:
        assert str(error).strip()

    def use() -> None:
        for place in chunks.places(chunks.decode(contents)):
            assert 0 < place.size <= chunks.CHUNK and chunks.read(FOLDER / "parts", *place.cut) == b""

    return _taken(use)


TARGETS = [
    Target("indexes", st.deferred(indexes), check_index, cost=10, warm=_index),
    Target("checkpoints", checkpoints(), check_checkpoint, cost=5),
    Target("adapters", st.tuples(json_like(_HEADER), json_like(_BASE), json_like(_CONFIG)), check_adapters, cost=5),
    Target(
        "version contents",
        st.tuples(_msgpack(_CONTENTS), near(st.just(_CHANGE), CLAIMS), _msgpack(_ROUND)),
        check_contents,
        lambda data: check_contents((data, data, data)),
        cost=2,
        seeds=lambda: [chunks.encode(_CONTENTS), _CHANGE],
    ),
]
