"""The BM25 backend against bm25s's own ranking, ties, and queries that match nothing."""

import json
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest

from services.env_search.backend import NO_DOCUMENT, IndexSpec
from services.env_search.bm25 import Terms, best
from services.env_search.index import OpenIndex, build_index, open_index
from shared.errors import UserError


def write_corpus(path: Path, contents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"id": f"d{i}", "contents": text}) + "\n" for i, text in enumerate(contents)))
    return path


def random_texts(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    words = np.array([f"word{i}" for i in range(60)])
    return [" ".join(generator.choice(words, generator.integers(3, 30))) for _ in range(count)]


@pytest.mark.parametrize("chunk_documents", [7, 1000])
def test_scores_are_those_of_bm25s_and_ties_go_to_the_lower_number(tmp_path: Path, chunk_documents: int):
    texts = random_texts(200, seed=1)
    texts[150:] = texts[:50]  # every one of these ties with its copy
    corpus = write_corpus(tmp_path / "corpus.jsonl", texts)
    spec = IndexSpec(k1=1.2, b=0.7, stemmer="none")
    build_index(corpus, tmp_path / "index", spec, chunk_documents=chunk_documents)
    backend = open_index(corpus, tmp_path / "index", spec).backend

    reference = bm25s.BM25(k1=1.2, b=0.7, method="lucene")
    reference.index([text.split() for text in texts], show_progress=False)
    for query in random_texts(40, seed=2):
        full = reference.get_scores(query.split())
        order = np.lexsort((np.arange(len(texts)), -full))[:10]
        ids, scores = backend.search([query], 10)
        np.testing.assert_allclose(scores[0], full[order], rtol=1e-5)
        # The reference adds the terms in another order, so only scores that clearly differ fix the ranking.
        for place, number in enumerate(ids[0]):
            assert full[number] == pytest.approx(full[order[place]], rel=1e-5)
        for place in range(9):
            if scores[0, place] == scores[0, place + 1]:
                assert ids[0, place] < ids[0, place + 1]


def test_an_answer_for_few_is_the_head_of_the_answer_for_many(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["river"] * 30 + ["river mill"] * 30)
    build_index(corpus, tmp_path / "index", IndexSpec())
    backend = open_index(corpus, tmp_path / "index", IndexSpec()).backend
    many, _ = backend.search(["river mill"], 50)
    for k in (1, 3, 29, 31):
        assert backend.search(["river mill"], k)[0].tolist() == many[:, :k].tolist()


def test_documents_without_a_query_word_are_no_hits(small_index: OpenIndex):
    ids, scores = small_index.backend.search(["weir", "nothing known", "the", ""], 3)
    assert ids.dtype == np.int64
    assert scores.dtype == np.float32
    assert ids.tolist() == [[3, NO_DOCUMENT, NO_DOCUMENT]] + [[NO_DOCUMENT] * 3] * 3
    assert (scores[ids == NO_DOCUMENT] == 0).all()


def test_a_search_leaves_nothing_behind_for_the_next(small_index: OpenIndex):
    first = small_index.backend.search(["river mill"], 3)
    small_index.backend.search(["water turbine river"], 3)
    again = small_index.backend.search(["river mill"], 3)
    assert first[0].tolist() == again[0].tolist()
    assert first[1].tolist() == again[1].tolist()


def test_words_are_stemmed_folded_and_freed_of_stop_words():
    assert Terms("english")("The Mills, grinding ＡＢＣ of 5 rivers!") == ["mill", "grind", "abc", "5", "river"]
    assert Terms("none")("The Mills") == ["the", "mills"]


def test_best_equals_a_full_sort_with_repeats():
    generator = np.random.default_rng(0)
    for _ in range(300):
        documents = generator.integers(0, 12, generator.integers(1, 40))
        value = generator.integers(1, 4, 12).astype(np.float32)
        _, counts = np.unique(documents, return_counts=True)
        k = int(generator.integers(1, 15))
        found, scores = best(documents, value[documents], k, repeats=int(counts.max()))
        wanted = sorted(set(documents.tolist()), key=lambda number: (-value[number], number))[:k]
        assert found.tolist() == wanted
        assert scores.tolist() == value[wanted].tolist()


def test_documents_without_words_are_never_hits(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["", "river", "!!!"])
    build_index(corpus, tmp_path / "index", IndexSpec())
    ids, _ = open_index(corpus, tmp_path / "index", IndexSpec()).backend.search(["a river"], 3)
    assert ids.tolist() == [[1, NO_DOCUMENT, NO_DOCUMENT]]


def test_a_corpus_without_any_word_is_refused(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["", "!!!"])
    with pytest.raises(UserError, match="holds no words to search"):
        build_index(corpus, tmp_path / "index", IndexSpec())


def test_a_search_that_fails_leaves_nothing_behind_either(small_index: OpenIndex, monkeypatch: pytest.MonkeyPatch):
    backend: Any = small_index.backend
    query = " ".join(backend._vocabulary)
    before = [part.tolist() for part in backend.search([query], 3)]
    with monkeypatch.context() as false:
        false.setattr(backend, "_bounds", backend._bounds[:-1])
        with pytest.raises(IndexError):
            backend.search([query], 3)
    assert [part.tolist() for part in backend.search([query], 3)] == before
