"""Weights on a shared folder: a directory per version, written aside, digested, renamed, then announced.

    <weights>/v0000-00000012/   config.json  model.safetensors  tokenizer files  manifest.json

A directory under its final name is complete; `manifest.json` lists each file's size and the digest of the whole.
Nothing waits for the disk: no version has to outlive a power failure, since a learner that resumes does so from a
checkpoint and publishes anew. Whoever reads one goes by its digest.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from shared.errors import UserError
from shared.versions import Version

MANIFEST = "manifest.json"
_VERSION = re.compile(r"v(\d{4,})-(\d{8,})")  # the name of its folder
_CHUNK = 2**20
_THREADS = 4  # by which a digest takes no longer than reading the files does; one is enough beside a reader
_LARGE = 2**26  # from here on; of small files it takes longer to start threads

Take = Callable[[blake3, Path], None]


def update_from(hasher: blake3, file: Path) -> None:
    """Add a file's content. It is read, not mapped: a map of a file that a shared folder has lost ends the process."""
    buffer = memoryview(bytearray(_CHUNK))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            hasher.update(buffer[:count])


def publish(
    root: Path,
    version: Version,
    write: Callable[[Path], None],
    digest: Callable[[Path], tuple[str, int]] | None = None,
) -> tuple[Path, str, int]:
    """Have `write(directory)` fill a fresh directory, then name it. Returns (path, digest, bytes).

    A version that is there already (published just before a crash) is replaced. `digest`: asked instead of `digest_of`.
    """
    root.mkdir(parents=True, exist_ok=True)
    aside = root / f".{version.directory}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    write(aside)
    named, size = (digest or digest_of)(aside)
    files = {f.name: f.stat().st_size for f in sorted(aside.iterdir())}
    manifest = {"version": list(version), "digest": named, "size": size, "files": files}
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1))
    final = root / version.directory
    put_in_place(aside, final)
    return final, named, size


def put_in_place(aside: Path, final: Path) -> None:
    """Give a complete folder its name. Another of that name makes way for it, and is deleted only then."""
    # a name that was never used: of one that makes way a network folder may keep files for a while
    old = final.with_name(f".old-{final.name}.{time.time_ns()}")
    if final.exists():
        final.rename(old)
    aside.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def digest_of(directory: Path, take: Take = update_from) -> tuple[str, int]:
    """(BLAKE3 of every file but the manifest, by name order, folders within included; their total bytes).

    `take` adds a file's content, and may keep what it reads.
    """
    files = digested(directory)
    total = sum(files.values())
    hasher = blake3(max_threads=_THREADS if total > _LARGE and take is update_from else 1)
    for name, size in files.items():
        hasher.update(title(name, size))
        take(hasher, directory / name)
    return hasher.hexdigest(), total


def digested(directory: Path) -> dict[str, int]:
    """Names and bytes of the files in a directory's digest, in its order."""
    paths = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return {name: path.stat().st_size for name, path in paths.items() if name != MANIFEST}


def title(name: str, size: int) -> bytes:
    """What goes before a file's content."""
    return f"{name}\0{size}\0".encode()


def verify(directory: Path, digest: str, take: Take = update_from) -> None:
    """Raise UserError when the files are not the ones that were published. `take`: as in `digest_of`."""
    if not directory.is_dir():
        raise UserError(
            f"weights {directory} are not there: where learner and actors do not share the folder, set "
            "weights.transport to 'redis' or 'broadcast'."
        )
    found, _ = digest_of(directory, take)
    if found != digest:
        raise UserError(
            f"weights {directory} have digest {found}, announced was {digest}: the files are damaged or replaced."
        )


def digest_in(directory: Path) -> str:
    """The digest that its manifest says it has; empty where there is none."""
    try:
        return str(json.loads((directory / MANIFEST).read_text())["digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def published(root: Path) -> list[Version]:
    """The complete versions in the folder, oldest first."""
    if not root.is_dir():
        return []
    names = [_VERSION.fullmatch(p.name) for p in root.iterdir() if p.is_dir()]
    return sorted(Version(int(name[1]), int(name[2])) for name in names if name)


def delete(root: Path, version: Version) -> None:
    """Remove a version; the rename first makes a half-deleted one invisible."""
    directory = root / version.directory
    doomed = root / f".deleted-{version.directory}"
    if directory.exists():
        directory.rename(doomed)
        shutil.rmtree(doomed)
