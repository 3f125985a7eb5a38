"""The manifest of an index: what it was built from, and the fingerprint that names the pair of corpus and
settings.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.env_search.backend import IndexSpec
from shared.errors import UserError
from shared.files import write_whole
from shared.messages import UNREADABLE

SCHEMA = 1
FILE = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Written last, so a directory with a manifest is a complete index."""

    schema: int
    backend: str
    settings: dict[str, Any]
    corpus_digest: str
    documents: int
    fingerprint: str
    extra: dict[str, Any]  # of the backend: the dense one keeps its dimension and a probe of its encoder


def describe(spec: IndexSpec, corpus_digest: str, documents: int, extra: dict[str, Any] | None = None) -> Manifest:
    """The manifest of an index of `spec` over the corpus of that digest."""
    return Manifest(
        schema=SCHEMA,
        backend=spec.backend,
        settings=spec.settings(),
        corpus_digest=corpus_digest,
        documents=documents,
        fingerprint=fingerprint(spec, corpus_digest),
        extra=extra or {},
    )


def fingerprint(spec: IndexSpec, corpus_digest: str) -> str:
    """16 hex characters over the corpus and every setting that changes the answers."""
    named = {"schema": SCHEMA, "corpus": corpus_digest, "backend": spec.backend, "settings": spec.settings()}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """The manifest is there whole or not at all."""
    write_whole(directory / FILE, json.dumps(asdict(manifest), indent=2) + "\n")


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of an index directory, or None where there is none. UserError where it cannot be understood."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, *UNREADABLE):
        raise UserError(
            f"{path} cannot be read as the manifest of an index: remove {directory} and build the index again."
        ) from None
    if manifest.schema != SCHEMA:
        other = f"{path} has schema {manifest.schema}, this version reads {SCHEMA}"
        raise UserError(f"{other}: remove {directory} and build the index again.")
    return manifest
