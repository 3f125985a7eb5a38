"""A version in Redis: its files in chunks, each with a digest, and a table of contents that is written last.

    headrace:{run}:version:v0000-00000012    hash    contents -> Contents, msgpack
                                                     0, 1, 2 ... -> the chunks of all files, one file after the other
                                                     d3 ... -> what chunk 3 differs by from the base (delta.py)
    headrace:{run}:versions                  set     the names of the versions that are there, or half there

Chunks are raw bytes. A chunk that is on the disk with the right digest need not be fetched.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
from blake3 import blake3

from shared.errors import UserError
from shared.messages import UNREADABLE
from shared.streams import Keys
from shared.versions import Version

CHUNK = 2**20  # bytes; nobody else waits long for the server, and the processor's cache holds it on its way
CONTENTS = "contents"


class File(msgspec.Struct, frozen=True):
    """One file: its name within the folder, its bytes, and the digest of each chunk."""

    name: str
    size: int
    chunks: list[bytes]


class Base(msgspec.Struct, frozen=True):
    """The version that differences are to."""

    version: Version
    digest: str


class Contents(msgspec.Struct, frozen=True):
    """What a version consists of. `digest`: of the whole, as its notice announces it; `base`: None without delta."""

    digest: str
    files: list[File]
    base: Base | None = None


@dataclass(frozen=True)
class Place:
    """Where a chunk lies: its number in the version, its file, and the bytes of it."""

    number: int
    file: str
    start: int
    size: int
    digest: bytes

    @property
    def cut(self) -> tuple[str, int, int]:
        """What `read` takes."""
        return self.file, self.start, self.size


def key_of(keys: Keys, directory: str) -> str:
    """The hash of the version whose folder has this name."""
    return f"{keys.prefix}version:{directory}"


def versions_key(keys: Keys) -> str:
    """The set of what is there."""
    return keys.prefix + "versions"


def difference(number: int) -> str:
    """The field that holds what a chunk differs by."""
    return f"d{number}"


def digest(data: bytes) -> bytes:
    """Of one chunk."""
    return blake3(data).digest()


def files_in(folder: Path) -> list[tuple[str, int]]:
    """(name, bytes) of every file in it, folders within included, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]


def is_inside(name: str) -> bool:
    """Whether a file of this name lies in the folder that it is put into."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def cuts(size: int) -> Iterator[tuple[int, int]]:
    """(start, bytes) of each chunk of a file."""
    return ((start, min(CHUNK, size - start)) for start in range(0, size, CHUNK))


def places(contents: Contents) -> Iterator[Place]:
    """Every chunk of a version, in order. UserError where the contents cannot be true, or name a place elsewhere."""
    number = 0
    for file in contents.files:
        count = -(-file.size // CHUNK)
        if not is_inside(file.name) or file.size < 0 or count != len(file.chunks):
            raise UserError(f"the contents of a version in Redis name a file '{file.name}' that cannot be in one.")
        for (start, size), digest in zip(cuts(file.size), file.chunks, strict=True):
            yield Place(number, file.name, start, size, digest)
            number += 1


def read(folder: Path, file: str, start: int, size: int) -> bytes:
    """Those bytes of a file, fewer or none where it is shorter or missing."""
    try:
        with (folder / file).open("rb") as stream:
            stream.seek(start)
            return stream.read(size)
    except FileNotFoundError:
        return b""


def encode(contents: Contents) -> bytes:
    """As it lies in Redis."""
    return msgspec.msgpack.encode(contents)


def decode(data: bytes) -> Contents:
    """UserError where it is not what `encode` made."""
    try:
        return msgspec.msgpack.decode(data, type=Contents)
    except UNREADABLE as error:
        raise UserError(f"the contents of a version in Redis cannot be read ({error}).") from None
