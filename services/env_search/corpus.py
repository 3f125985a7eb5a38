"""The corpus: JSON lines {"id", "contents"}, read from a memory map and never held as Python objects.

`contents` is `"Title"` on the first line and the body after it (the form Search-R1 uses); a row's own "title"
and "text" win where present. Documents are numbered by their place in the file; "id" is what the outside sees.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from shared.errors import UserError
from shared.lines import LineFile, file_size

WHOLE_DIGEST_BYTES = 256 * 2**20
SAMPLE_BLOCKS = 4096
SAMPLE_BYTES = 16 * 2**10


class Document(TypedDict):
    """One passage as the service answers it."""

    id: str
    contents: str
    title: str
    text: str


class Corpus:
    """Documents of a JSON lines file by number."""

    def __init__(self, path: Path, starts: npt.NDArray[np.int64] | None = None) -> None:
        """Map `path`; `starts` are the line offsets the index stored. UserError where it is missing or empty."""
        self.path = path
        self._lines = LineFile(path, starts)
        self.starts = self._lines.starts
        if not len(self._lines):
            raise UserError(f'{path} holds no documents: the corpus needs one JSON object with "contents" a line.')

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> Document:
        try:
            return parse_document(self._lines[number], number)
        except ValueError as error:
            raise UserError(f"{self.path} line {self._lines.number(number)}: {error}") from None

    def contents(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """The contents of documents [start, stop), in order. UserError names the line that is malformed."""
        for number in range(start, len(self) if stop is None else min(stop, len(self))):
            yield self[number]["contents"]


def parse_document(line: bytes, number: int) -> Document:
    """Read one line; a row without "id" is called by its number. Raises ValueError saying what is wrong with
    it.
    """
    try:
        row: Any = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text.") from None
    except (ValueError, RecursionError):
        raise ValueError("is not JSON.") from None
    if not isinstance(row, dict) or not isinstance(row.get("contents"), str):
        raise ValueError('has no "contents": each line needs {"id": ..., "contents": "\\"Title\\"\\nbody"}.')
    contents: str = row["contents"]
    title, text = split_contents(contents)
    own_title, own_text = row.get("title"), row.get("text")
    return Document(
        id=str(row.get("id", number)),
        contents=contents,
        title=own_title if isinstance(own_title, str) else title,
        text=own_text if isinstance(own_text, str) else text,
    )


def split_contents(contents: str) -> tuple[str, str]:
    """(title without its quotes, body); contents of a single line are all body."""
    first, newline, rest = contents.partition("\n")
    if not newline:
        return "", contents
    title = first.strip()
    quoted = len(title) >= 2 and title[0] == title[-1] == '"'
    return title[1:-1] if quoted else title, rest


def corpus_digest(path: Path) -> str:
    """A digest that changes when the corpus does: hex, 32 characters.

    Up to 256 MiB every byte is read. Above that, reading would break the promise to be up within seconds
    (wiki-18 is 14 GB): the size and 4,096 evenly spaced blocks of 16 KiB are read, which sees any insertion or
    deletion of a line and every rewrite of the file, but can miss an edit in place that keeps the size.
    """
    size = file_size(path)
    digest = hashlib.sha256(f"{size}\n".encode())
    with path.open("rb") as file:
        if size <= WHOLE_DIGEST_BYTES:
            while block := file.read(2**20):
                digest.update(block)
        else:
            for offset in np.linspace(0, size - SAMPLE_BYTES, SAMPLE_BLOCKS).astype(np.int64):
                file.seek(int(offset))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]
