"""A version's digest, made of its weights while they are written: no byte is read again for it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from shared.weights import digest_of, digested, title, update_from


class DigestBeside:
    """What `digest_of` says of a folder, one large file in it having been digested as it was written.

    What comes before that file by name is to be there by then. Where it is other files in the end, all are read again.
    """

    def __init__(self) -> None:
        self._hasher = blake3()
        self._taken: dict[str, int] = {}

    @contextmanager
    def written(self, path: Path, size: int) -> Iterator[Callable[[memoryview], "Future[blake3]"]]:
        """Around the writing of a file of that size, in the folder itself: takes its data, in order, in a thread."""
        before = {name: length for name, length in digested(path.parent).items() if path.parent / name < path}
        for name, length in before.items():
            self._take(path.parent, name, length)
        self._begin(path.name, size)
        with ThreadPoolExecutor(1) as pool:
            yield lambda data: pool.submit(self._hasher.update, data)

    def of(self, folder: Path) -> tuple[str, int]:
        """As `digest_of`, when everything is written."""
        files = digested(folder)
        if not self._taken or list(files.items())[: len(self._taken)] != list(self._taken.items()):
            return digest_of(folder)
        for name in [*files][len(self._taken) :]:
            self._take(folder, name, files[name])
        return self._hasher.hexdigest(), sum(files.values())

    def _take(self, folder: Path, name: str, size: int) -> None:
        self._begin(name, size)
        update_from(self._hasher, folder / name)

    def _begin(self, name: str, size: int) -> None:
        self._taken[name] = size
        self._hasher.update(title(name, size))
