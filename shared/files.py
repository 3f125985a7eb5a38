"""Files that are there whole or not at all, and files by which one process at a time holds a folder."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shared.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what the system says where a disk has no room
# what stays until a person mends it; anything else of the system's, as from a network folder, may be over next time
REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
)

PARTIAL = ".partial"  # behind the name of a file that is being written


@contextmanager
def written_whole(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file beside `path` to write; it takes its place at the end, when it is on the disk. `mode`: less the umask.

    A process that is killed, or a disk that is full, leaves what was there before.
    """
    aside = path.with_name(path.name + PARTIAL)
    aside.unlink(missing_ok=True)
    try:
        with open(aside, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text at once; see `written_whole`."""
    with written_whole(path, mode) as file:
        file.write(text.encode())


def is_held(path: Path) -> bool:
    """Whether a process, on this machine or on one that shares the folder, has locked the file by `hold`."""
    try:
        file = path.open()
    except (FileNotFoundError, IsADirectoryError):
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def hold(path: Path, refusal: str) -> IO[str]:
    """Lock a file for as long as the returned one is open, the end of the process included.

    UserError with this sentence when another process holds it.
    """
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UserError(refusal) from None
    return file
