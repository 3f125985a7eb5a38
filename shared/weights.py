"""Weights on a shared folder: a directory per version, written aside, digested, synced, renamed, then announced.

    <weights>/v0000-00000012/   config.json  model.safetensors  tokenizer files  manifest.json

A directory under its final name is complete; `manifest.json` lists each file's size and the digest of the whole.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from shared.cores import share_of_cores
from shared.errors import UserError
from shared.versions import Version

MANIFEST = "manifest.json"
_CHUNK = 2**22
_PLAIN_DIGITS = 32
HASHERS = 4  # threads, at most: beside them an actor goes on sampling


def publish(root: Path, version: Version, write: Callable[[Path], None]) -> tuple[Path, str, int]:
    """Have `write(directory)` fill a fresh directory, then name it. Returns (path, digest, bytes).

    A version that is there already (published just before a crash) is replaced.
    """
    root.mkdir(parents=True, exist_ok=True)
    aside = root / f".{version.directory}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    write(aside)
    with ThreadPoolExecutor(1) as pool:  # the disk is slow, and so is the digest
        synced = pool.submit(sync_folder, aside)
        digest, size = digest_of(aside)
        synced.result()
    files = {f.name: f.stat().st_size for f in sorted(aside.iterdir())}
    manifest = {"version": list(version), "digest": digest, "size": size, "files": files}
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1))
    sync(aside / MANIFEST)
    sync(aside)
    final = root / version.directory
    if final.exists():
        old = root / f".old-{version.directory}.{os.getpid()}"
        final.rename(old)
        shutil.rmtree(old)
    aside.rename(final)
    sync(root)
    return final, digest, size


def sync_folder(folder: Path) -> None:
    """Have the disk hold a folder and the files in it, before a rename says that they are complete."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """fsync of one file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(directory: Path, like: str = "") -> tuple[str, int]:
    """(SHA-256 of every file but the manifest, by name order, folders within included; their total bytes).

    It is taken of the digests of pieces, which several threads work out, since a swap waits for it twice. `like`: the
    digest it is to be compared with; those of before were BLAKE2b of the files themselves.
    """
    plain = len(like) == _PLAIN_DIGITS
    total, hasher = 0, hashlib.blake2b(digest_size=_PLAIN_DIGITS // 2) if plain else hashlib.sha256()
    with ThreadPoolExecutor(min(HASHERS, share_of_cores(1))) as pool:
        for file in sorted(path for path in directory.rglob("*") if path.is_file()):
            name, size = file.relative_to(directory).as_posix(), file.stat().st_size
            if name == MANIFEST:
                continue
            hasher.update(f"{name}\0{size}\0".encode())
            starts = range(0, size, _CHUNK)
            for piece in map(partial(_piece, file), starts) if plain else pool.map(partial(_digest, file), starts):
                hasher.update(piece)
            total += size
    return hasher.hexdigest(), total


def _piece(file: Path, start: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(start)
        return stream.read(_CHUNK)


def _digest(file: Path, start: int) -> bytes:
    return hashlib.sha256(_piece(file, start)).digest()


def verify(directory: Path, digest: str) -> None:
    """Raise UserError when the files are not the ones that were published."""
    if not directory.is_dir():
        raise UserError(
            f"weights {directory} are not there: do learner and actors share the folder, or weights.transport 'redis'?"
        )
    found, _ = digest_of(directory, like=digest)
    if found != digest:
        raise UserError(
            f"weights {directory} have digest {found}, announced was {digest}: the files are damaged or replaced."
        )


def digest_in(directory: Path) -> str:
    """The digest that its manifest says it has; empty where there is none."""
    try:
        return str(json.loads((directory / MANIFEST).read_text())["digest"])
    except (OSError, ValueError, KeyError):
        return ""


def published(root: Path) -> list[Version]:
    """The complete versions in the folder, oldest first."""
    if not root.is_dir():
        return []
    names = [p.name for p in root.iterdir() if p.is_dir() and p.name.startswith("v")]
    return sorted(Version(int(n[1:5]), int(n[6:])) for n in names)


def delete(root: Path, version: Version) -> None:
    """Remove a version; the rename first makes a half-deleted one invisible."""
    directory = root / version.directory
    doomed = root / f".deleted-{version.directory}"
    if directory.exists():
        directory.rename(doomed)
        shutil.rmtree(doomed)
