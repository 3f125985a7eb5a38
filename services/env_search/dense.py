"""Dense retrieval: a sentence-transformers encoder, and exact inner-product search with faiss over mapped
embeddings.

Embeddings are a float32 .npy that is mapped, not loaded, and searched block by block: exact, and the operating
system decides what stays in memory. One batch reads the whole file once, which is why requests are merged.
torch, sentence-transformers and faiss are imported only here, when the backend is used.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.env_search.backend import NO_DOCUMENT
from shared.errors import UserError

FILE = "embeddings.npy"
BLOCK_DOCUMENTS = 500_000
PROBE = "The river feeds the wheel."
PROBE_COSINE = 0.999


class Encoder:
    """Texts to unit vectors float32 [n, dimension]."""

    def __init__(self, name: str) -> None:
        """Load an encoder by directory or hub name. UserError where it, or a package it needs, is missing."""
        try:
            from sentence_transformers import SentenceTransformer
            from transformers.utils import logging as transformers_logging
        except ImportError as error:
            raise UserError(
                f"The dense backend needs a package that is missing ({error.name}): pip install -e '.[dense]' in "
                "Headrace's folder."
            ) from None
        transformers_logging.disable_progress_bar()  # it would tear the build's own bar
        try:
            self._model = SentenceTransformer(name, device=_device())
        except (OSError, ValueError) as error:
            raise UserError(
                f"The encoder {name!r} cannot be loaded ({_first_line(error)}): "
                "give a directory or a reachable hub name."
            ) from None
        self.name = name

    def __call__(self, texts: list[str], prefix: str) -> npt.NDArray[np.float32]:
        vectors = self._model.encode(
            [prefix + text for text in texts],
            batch_size=64,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, np.float32)

    def probe(self) -> npt.NDArray[np.float32]:
        """The vector of a fixed sentence: the mark by which an index knows its encoder."""
        return self([PROBE], "")[0]


class DenseBackend:
    """Searches an index directory made by `dense_build`."""

    def __init__(self, directory: Path, settings: dict[str, Any], probe: list[float], documents: int) -> None:
        """Map the embeddings and load the encoder; `settings`, `probe` and `documents` are those of the manifest.

        Raises UserError where the encoder is not the one that made the index, ValueError for embeddings that are not.
        """
        self._embeddings: npt.NDArray[np.float32] = np.load(directory / FILE, mmap_mode="r")
        self._encoder = Encoder(settings["encoder"])
        self._prefix: str = settings["query_prefix"]
        ours, theirs = self._encoder.probe(), np.asarray(probe, np.float32)
        if ours.shape != theirs.shape or not float(ours @ theirs) >= PROBE_COSINE:
            raise UserError(
                f"The encoder {settings['encoder']!r} is not the one that built {directory}: "
                "build the index again with it."
            )
        if self._embeddings.shape != (documents, len(ours)) or self._embeddings.dtype != np.float32:
            raise ValueError(f"{FILE} does not hold {documents} vectors of {len(ours)} float32")

    def search(self, queries: list[str], k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """See SearchBackend."""
        return nearest(self._encoder(queries, self._prefix), self._embeddings, k)


def nearest(
    queries: npt.NDArray[np.float32],
    embeddings: npt.NDArray[np.float32],
    k: int,
    block_documents: int = BLOCK_DOCUMENTS,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The k rows of `embeddings` [documents, d] with the largest inner product to each of `queries` [n, d].

    Numbers int64 [n, k] and scores float32 [n, k] as in SearchBackend. A row whose product is not finite
    is never found; one of +inf takes the place of another in its block.
    """
    import faiss

    rows = len(queries)
    ids = np.full((rows, k), NO_DOCUMENT, np.int64)
    scores = np.full((rows, k), -np.inf, np.float32)
    for start in range(0, len(embeddings), block_documents):
        block = np.ascontiguousarray(embeddings[start : start + block_documents])
        values, found = faiss.knn(queries, block, min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        real = (found >= 0) & np.isfinite(values)  # faiss fills up with -1 where products are NaN
        all_scores = np.concatenate([scores, np.where(real, values, -np.inf)], axis=1)
        all_ids = np.concatenate([ids, np.where(real, found + start, NO_DOCUMENT)], axis=1)
        order = np.lexsort((all_ids, -all_scores), axis=1)[:, :k]
        scores, ids = np.take_along_axis(all_scores, order, 1), np.take_along_axis(all_ids, order, 1)
    scores[ids == NO_DOCUMENT] = 0.0
    return ids, scores


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
