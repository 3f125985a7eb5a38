"""BM25 (Lucene's variant) over a memory-mapped index whose scores bm25s worked out.

The index holds each (term, document) score; a query adds the rows of its terms. The adding touches only documents
that hold a query term, so its cost follows the postings and not the corpus. Documents without any query term are no
hits: a query of unknown words finds nothing. Serving needs numpy alone: bm25s, which takes numba and 150 MB with it
where that is installed, is imported by the build only.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from services.env_search.backend import NO_DOCUMENT

FOLDER = "bm25"
WORD = re.compile(r"\w+")
# The words Lucene's English analyser leaves out.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such "
        "that the their then there these they this to was will with",
    )
)


class Terms:
    """Text to index terms: Unicode-normalised lower-case words without English stop words, stemmed."""

    def __init__(self, stemmer: Literal["english", "none"]) -> None:
        self._stop = STOP_WORDS if stemmer == "english" else frozenset()
        self._stem: Callable[[list[str]], list[str]] = list
        if stemmer == "english":
            import Stemmer

            self._stem = Stemmer.Stemmer("english").stemWords

    def __call__(self, text: str) -> list[str]:
        words = WORD.findall(unicodedata.normalize("NFKC", text).lower())
        return self._stem([word for word in words if word not in self._stop])


class Bm25Backend:
    """Searches an index directory made by `bm25_build`. One thread at a time: the score buffer is shared."""

    def __init__(self, directory: Path, settings: dict[str, Any], documents: int) -> None:
        """Map the index; `settings` and the number of `documents` are those of its manifest."""
        folder = directory / FOLDER
        self._vocabulary: dict[str, int] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._data: npt.NDArray[np.float32] = np.load(folder / "scores.npy", mmap_mode="r")
        self._documents: npt.NDArray[np.int32] = np.load(folder / "documents.npy", mmap_mode="r")
        self._bounds: npt.NDArray[np.int64] = np.load(folder / "bounds.npy", mmap_mode="r")
        arrays = (self._data, self._documents, self._bounds)
        if not isinstance(self._vocabulary, dict) or [a.dtype.kind + str(a.ndim) for a in arrays] != ["f1", "i1", "i1"]:
            raise ValueError(f"the files in {FOLDER} are not those of an index")
        if len(self._data) != len(self._documents) or len(self._bounds) <= len(self._vocabulary):
            raise ValueError(f"the files in {FOLDER} are not of one index")
        self._terms = Terms(settings["stemmer"])
        self._scores = np.zeros(documents, np.float32)

    def search(self, queries: list[str], k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """See SearchBackend."""
        ids = np.full((len(queries), k), NO_DOCUMENT, np.int64)
        scores = np.zeros((len(queries), k), np.float32)
        for row, query in enumerate(queries):
            found, values = self._search_one(query, k)
            ids[row, : len(found)] = found
            scores[row, : len(found)] = values
        return ids, scores

    def _search_one(self, query: str, k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        terms = [self._vocabulary[term] for term in self._terms(query) if term in self._vocabulary]
        if not terms:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        postings: list[npt.NDArray[np.int32]] = []
        try:
            for term in terms:
                span = slice(int(self._bounds[term]), int(self._bounds[term + 1]))
                documents = self._documents[span]
                # A document occurs once in a term's postings, so this adds and never overwrites.
                self._scores[documents] += self._data[span]
                postings.append(documents)
            touched = np.concatenate(postings)
            return best(touched, self._scores[touched], k, repeats=len(terms))
        finally:  # also where the index is not what it should be: the next query must not find these scores
            for documents in postings:
                self._scores[documents] = 0.0


def best(
    documents: npt.NDArray[Any], scores: npt.NDArray[np.float32], k: int, repeats: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The k best distinct documents, score descending, then number ascending.

    `documents` and `scores` are [n]; a document occurs at most `repeats` times, always with the same score. The
    answer is [min(k, distinct)].
    """
    # The first k * repeats places hold at least k distinct documents; all ties with the last of them are looked at.
    cut = min(k * repeats, len(scores))
    above = scores >= np.partition(scores, len(scores) - cut)[len(scores) - cut]
    distinct, first = np.unique(documents[above], return_index=True)
    values = scores[above][first]
    order = np.lexsort((distinct, -values))[:k]
    return distinct[order].astype(np.int64), values[order]
