"""Random access to the lines of a large text file, without reading it into memory.

A `LineFile` is an int64 array with the byte offset of every line plus a memory map of the file: 21 million
passages cost 168 MB of offsets and nothing else. Empty lines are not lines. The offsets can be stored and
handed back in.
"""

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.errors import UserError

BLOCK_BYTES = 16 * 2**20
NEWLINE = 10


class LineFile:
    """`len(lines)` lines; `lines[i]` is the i-th as bytes, without its line end. Safe to read from several
    threads.
    """

    def __init__(self, path: Path, starts: npt.NDArray[np.int64] | None = None) -> None:
        """Map `path`. `starts` are offsets from an earlier `scan_line_starts`; without them the file is
        scanned.

        Raises UserError where the file is missing or cannot be read.
        """
        self.path = path
        self.starts = scan_line_starts(path) if starts is None else starts
        # An empty file cannot be mapped; it has no lines, so the map is never read.
        self._map: mmap.mmap | bytes = b""
        if path.stat().st_size:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self.starts):
            raise IndexError(f"line {index} of {len(self.starts)} in {self.path}")
        start = int(self.starts[index])
        end = self._map.find(b"\n", start)
        return self._map[start : len(self._map) if end < 0 else end]

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))

    def number(self, index: int) -> int:
        """The number of line `index` as an editor shows it: 1-based, empty lines counted. Slow: for messages."""
        start = min(int(self.starts[index]), len(self._map))  # an offset that was handed in may be any number
        return 1 + sum(self._map[at : min(at + BLOCK_BYTES, start)].count(b"\n") for at in range(0, start, BLOCK_BYTES))


def scan_line_starts(path: Path, on_bytes: Callable[[int], None] = lambda read: None) -> npt.NDArray[np.int64]:
    """Byte offsets of the non-empty lines of `path`, int64 [lines]; `on_bytes` hears how much has been read.

    Raises UserError where the file is missing or cannot be read.
    """
    size = file_size(path)
    newlines: list[npt.NDArray[np.int64]] = []
    at = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            newlines.append(np.flatnonzero(np.frombuffer(block, np.uint8) == NEWLINE).astype(np.int64) + at)
            at += len(block)
            on_bytes(at)
        ends = np.concatenate([*newlines, np.array([size], np.int64)])
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
        keep = ends > starts
        # The lone byte of a one-byte line is usually the \r of an empty line.
        for line in np.flatnonzero(ends - starts == 1):
            file.seek(int(starts[line]))
            keep[line] = bool(file.read(1).strip())
    return starts[keep]


def file_size(path: Path) -> int:
    """Bytes of `path`; UserError where it is missing, not a file, or not readable."""
    try:
        with path.open("rb") as file:
            return file.seek(0, 2)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path.") from None
