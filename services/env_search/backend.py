"""What every search backend offers, and how an index is described.

An `IndexSpec` is everything about an index that changes its answers; the manifest stores it and the fingerprint
covers it.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from shared.settings import Search

NO_DOCUMENT = -1

Progress = Callable[[str, int, int], None]
"""Hears (stage, done, total), total in documents."""


def silent(stage: str, done: int, total: int) -> None:
    """The Progress that shows nothing."""


class SearchBackend(Protocol):
    """Ranks documents for queries. Called from one thread at a time."""

    def search(self, queries: list[str], k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Document numbers int64 [n, k] and scores float32 [n, k], best first, ties by number.

        Where fewer than k documents match, the rest of the row is NO_DOCUMENT with score 0.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class IndexSpec:
    """How an index is built. `k1`, `b` and `stemmer` are BM25's, the rest the dense backend's."""

    backend: Literal["bm25", "dense"] = "bm25"
    k1: float = 0.9
    b: float = 0.4
    stemmer: Literal["english", "none"] = "english"
    encoder: str = ""
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "

    def settings(self) -> dict[str, Any]:
        """The settings that matter to this backend."""
        names = ("k1", "b", "stemmer") if self.backend == "bm25" else ("encoder", "query_prefix", "passage_prefix")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, search: Search) -> "IndexSpec":
        """The index that a configuration asks for."""
        return cls(**{field.name: getattr(search, field.name) for field in fields(cls)})


def build_command(corpus: Path, out: Path, spec: IndexSpec) -> str:
    """The command that builds this index: its options have the defaults of IndexSpec, so only the others are named."""
    words = ["headrace", "index", "build", str(corpus), str(out), "--backend", spec.backend]
    for name, value in spec.settings().items():
        if value != getattr(IndexSpec, name):
            words += ["--" + name.replace("_", "-"), str(value)]
    return shlex.join(words)
