"""An index directory: built aside and renamed, opened only with the corpus it was made from.

OUT.building/            while it is built; a build that was interrupted continues from what is in it
    build.json           the fingerprint it is meant to get: another one starts over
    scratch/             chunks that are done
OUT/
    manifest.json        what it was built from (services.env_search.manifest)
    offsets.npy          int64 [documents], where each line of the corpus starts
    bm25/ or embeddings.npy
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from services.env_search.backend import IndexSpec, Progress, SearchBackend, build_command, silent
from services.env_search.corpus import WHOLE_DIGEST_BYTES, Corpus, corpus_digest
from services.env_search.manifest import Manifest, describe, fingerprint, read_manifest, write_manifest
from shared.errors import UserError
from shared.files import hold
from shared.lines import file_size

OFFSETS = "offsets.npy"
# of files that are cut short, hold other things, or objects, which would be unpickled; TokenError: numpy's, of a header
_DAMAGE = (EOFError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, TokenError)


@dataclass(frozen=True)
class Built:
    """What a build came to; `reused` where the index was there already."""

    documents: int
    seconds: float
    bytes: int
    fingerprint: str
    reused: bool


@dataclass(frozen=True)
class OpenIndex:
    """A corpus and the backend that searches it."""

    corpus: Corpus
    backend: SearchBackend
    manifest: Manifest


def build_index(corpus_path: Path, out: Path, spec: IndexSpec, progress: Progress = silent, **options: Any) -> Built:
    """Build the index of `spec` over `corpus_path` into the directory `out`, or find that it is there.

    An older index at `out` is replaced once the new one is complete. `options` go to the backend's build.
    Raises UserError where the corpus is missing, empty or malformed (naming the line), `out` holds something
    else, or another build runs.
    """
    started = time.monotonic()
    out = out.absolute()  # "." has no name to put another folder beside
    digest = corpus_digest(corpus_path)
    wanted = fingerprint(spec, digest)
    _refuse_other_content(out)
    existing = read_manifest(out) if out.exists() else None
    if existing and existing.fingerprint == wanted:
        return Built(existing.documents, time.monotonic() - started, _bytes(out), wanted, reused=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _only_build(out):
        work = _work_directory(out, wanted)
        manifest = read_manifest(work)
        if manifest is None:
            try:
                manifest = _build(corpus_path, digest, work, spec, progress, options)
            except UserError:
                if not any(work.glob("scratch/*")):  # nothing that another try could go on from
                    shutil.rmtree(work)
                raise
        _put_in_place(work, out)
    return Built(manifest.documents, time.monotonic() - started, _bytes(out), wanted, reused=False)


def open_index(corpus_path: Path, directory: Path, spec: IndexSpec) -> OpenIndex:
    """Open the index in `directory` for searching `corpus_path`.

    Raises UserError where either is missing, or the index is not that of this corpus and these settings.
    """
    if not str(corpus_path) or corpus_path == Path():
        raise UserError(
            'No corpus is named: set search.corpus to a file of JSON lines with "contents", '
            "or env.url to another retriever."
        )
    file_size(corpus_path)
    manifest = read_manifest(directory)
    if manifest is None:
        raise UserError(f"{directory} holds no index: run `{build_command(corpus_path, directory, spec)}`.")
    refuse_mismatch(corpus_path, directory, spec, manifest)
    try:
        corpus = Corpus(corpus_path, np.load(directory / OFFSETS, mmap_mode="r"))
        if len(corpus) != manifest.documents:
            raise ValueError(f"{OFFSETS} has {len(corpus)} lines, {manifest.documents} were indexed")
        return OpenIndex(corpus, _open_backend(directory, manifest), manifest)
    except _DAMAGE as error:
        command = build_command(corpus_path, directory, spec)
        raise UserError(f"{directory} is damaged ({error}): remove it and run `{command}`.") from None


def _build(
    corpus_path: Path, digest: str, work: Path, spec: IndexSpec, progress: Progress, options: dict[str, Any]
) -> Manifest:
    corpus = Corpus(corpus_path)
    scratch = work / "scratch"
    scratch.mkdir(exist_ok=True)
    extra: dict[str, Any] = {}
    if spec.backend == "bm25":
        from services.env_search.bm25_build import build_bm25

        build_bm25(corpus, work, scratch, spec, progress, **options)
    else:
        from services.env_search.dense_build import build_dense

        extra["probe"] = build_dense(corpus, work, scratch, spec, progress, **options)
    np.save(work / OFFSETS, corpus.starts)
    if corpus_digest(corpus_path) != digest:
        raise UserError(f"{corpus_path} changed while its index was built: build again when it is complete.")
    manifest = describe(spec, digest, len(corpus), extra)
    write_manifest(work, manifest)
    return manifest


def _open_backend(directory: Path, manifest: Manifest) -> SearchBackend:
    if manifest.backend == "bm25":
        from services.env_search.bm25 import Bm25Backend

        return Bm25Backend(directory, manifest.settings, manifest.documents)
    from services.env_search.dense import DenseBackend

    return DenseBackend(directory, manifest.settings, manifest.extra["probe"], manifest.documents)


def differences(spec: IndexSpec, manifest: Manifest) -> list[tuple[str, Any, Any]]:
    """(setting, its value in the index, its value in `spec`) of all that differ; those of one backend."""
    wanted = spec.settings()
    return [(name, manifest.settings.get(name), v) for name, v in wanted.items() if manifest.settings.get(name) != v]


def refuse_mismatch(corpus_path: Path, directory: Path, spec: IndexSpec, manifest: Manifest) -> None:
    """UserError where the index is not that of this corpus and these settings."""
    rebuild = f"build it again with `{build_command(corpus_path, directory, spec)}`"
    if manifest.backend != spec.backend:
        raise UserError(f"{directory} is a {manifest.backend} index but search.backend is {spec.backend}: {rebuild}.")
    if others := differences(spec, manifest):
        each = " and ".join(f"{name} = {was!r} but search.{name} is {value!r}" for name, was, value in others)
        settings = "the setting" if len(others) == 1 else "the settings"
        raise UserError(f"{directory} was built with {each}: change {settings}, or {rebuild}.")
    if corpus_digest(corpus_path) != manifest.corpus_digest:
        _refuse_malformed(corpus_path)
        raise UserError(f"{directory} is not the index of {corpus_path}, which has other content: {rebuild}.")


def _refuse_malformed(corpus_path: Path) -> None:
    """A corpus that was damaged is better told by the line; only where reading it all is quick."""
    if file_size(corpus_path) <= WHOLE_DIGEST_BYTES:
        for _ in Corpus(corpus_path).contents():
            pass


def _work_directory(out: Path, wanted: str) -> Path:
    """`OUT.building`, emptied where it was begun for another fingerprint."""
    work = out.with_name(out.name + ".building")
    begun = work / "build.json"
    if work.exists():
        try:
            same = json.loads(begun.read_text(encoding="utf-8")) == {"fingerprint": wanted}
        except (OSError, ValueError):
            same = False
        if not same:
            shutil.rmtree(work)
    work.mkdir(exist_ok=True)
    begun.write_text(json.dumps({"fingerprint": wanted}), encoding="utf-8")
    return work


def _put_in_place(work: Path, out: Path) -> None:
    shutil.rmtree(work / "scratch", ignore_errors=True)
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    work.rename(out)
    # Last, since a build that is stopped before the rename is recognised by it.
    (out / "build.json").unlink(missing_ok=True)
    shutil.rmtree(old, ignore_errors=True)


def _refuse_other_content(out: Path) -> None:
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "manifest.json").exists())):
        raise UserError(f"{out} exists and is not an index: name another place, or remove it.")


@contextmanager
def _only_build(out: Path) -> Iterator[None]:
    """Hold the lock of `out`; the lock ends with the process, however that ends, and its file with the build."""
    file, refusal = out.with_name(out.name + ".lock"), f"{out} is being built by another process: wait for it."
    with hold(file, refusal) as lock:
        if not (file.exists() and os.path.samestat(os.fstat(lock.fileno()), file.stat())):
            raise UserError(refusal)  # the build that just ended has removed this very file
        try:
            yield
        finally:
            file.unlink()


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
