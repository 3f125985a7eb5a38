"""Builds the BM25 index in two stages: the corpus becomes term ids, chunk by chunk on disk; bm25s scores the
chunks.

A chunk that is on disk is kept, so a build that was interrupted continues with the next one. bm25s is handed an
object that reads the chunks again for each of its passes instead of lists, so memory holds the vocabulary and
the scores, not the text.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from services.env_search.backend import IndexSpec, Progress
from services.env_search.bm25 import FOLDER, Terms
from services.env_search.corpus import Corpus
from shared.errors import UserError
from shared.files import written_whole

CHUNK_DOCUMENTS = 50_000


class TermChunks:
    """The corpus as term ids, in files `<folder>/00000.npz` (ids int32, lengths int32) and `00000.json` (terms
    new in it).
    """

    def __init__(self, folder: Path, documents: int, on_document: Callable[[int], None] = lambda done: None) -> None:
        self.folder = folder
        self.documents = documents
        self.on_document = on_document

    def __len__(self) -> int:
        return self.documents

    def __iter__(self) -> Iterator[list[int]]:
        """The term ids of each document, in order."""
        done = 0
        for path in sorted(self.folder.glob("*.npz")):
            with np.load(path) as chunk:
                ids, ends = chunk["ids"].tolist(), np.cumsum(chunk["lengths"]).tolist()
            for start, end in zip([0, *ends[:-1]], ends, strict=True):
                yield ids[start:end]
                done += 1
                self.on_document(done)

    def kept(self) -> list[str]:
        """The terms of the chunks on disk, in the order of their ids."""
        terms: list[str] = []
        for path in sorted(self.folder.glob("*.npz")):
            terms += json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return terms


def build_bm25(
    corpus: Corpus,
    directory: Path,
    scratch: Path,
    spec: IndexSpec,
    progress: Progress,
    chunk_documents: int = CHUNK_DOCUMENTS,
) -> None:
    """Write the index of `corpus` under `directory`, continuing from the chunks in `scratch`, where they are
    left.

    Raises UserError naming the line where the corpus is malformed.
    """
    import bm25s

    total = len(corpus)
    vocabulary = _write_chunks(corpus, scratch, spec, progress, chunk_documents)
    if not vocabulary:
        raise UserError(f"{corpus.path} holds no words to search: every document is empty or stop words.")
    passes = 3  # bm25s reads the documents for their lengths, for document frequencies and for scores
    seen = 0

    def on_document(done: int) -> None:
        nonlocal seen
        seen += 1
        if seen % 1000 == 0 or seen == passes * total:
            progress("scoring", min(seen // passes, total), total)

    chunks = TermChunks(scratch, total, on_document)
    index = bm25s.BM25(k1=spec.k1, b=spec.b, method="lucene")
    matrix = index.build_index_from_ids(list(vocabulary.values()), chunks, show_progress=False)  # pyright: ignore
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    # A column a term: its documents, ascending, and their scores; `bounds` int64 [terms + 1] cuts the columns.
    for name, key in (("scores", "data"), ("documents", "indices"), ("bounds", "indptr")):
        np.save(folder / f"{name}.npy", matrix[key])
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")


def _write_chunks(
    corpus: Corpus, folder: Path, spec: IndexSpec, progress: Progress, chunk_documents: int
) -> dict[str, int]:
    """Write the chunks that are missing; returns term -> id."""
    terms = Terms(spec.stemmer)
    vocabulary = {term: number for number, term in enumerate(TermChunks(folder, len(corpus)).kept())}
    total = len(corpus)
    for start in range(0, total, chunk_documents):
        name = f"{start // chunk_documents:05d}"
        stop = min(start + chunk_documents, total)
        if not (folder / f"{name}.npz").exists():
            before = len(vocabulary)
            documents = [
                [vocabulary.setdefault(term, len(vocabulary)) for term in terms(contents)]
                for contents in corpus.contents(start, stop)
            ]
            new = list(vocabulary)[before:]
            (folder / f"{name}.json").write_text(json.dumps(new), encoding="utf-8")
            _write_arrays(folder / f"{name}.npz", documents)
        progress("reading", stop, total)
    return vocabulary


def _write_arrays(path: Path, documents: list[list[int]]) -> None:
    """A chunk on disk is whole (its terms were written before it)."""
    with written_whole(path) as file:
        np.savez(
            file,
            ids=np.fromiter((term for document in documents for term in document), np.int32),
            lengths=np.array([len(document) for document in documents], np.int32),
        )
