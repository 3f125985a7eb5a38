"""Redis's append-only file, read as the log it is: every write of a run in the order in which it took effect.

    appendonlydir/*.manifest    names the files in order: one base, then increments
    *N CRLF $len CRLF word CRLF ...    one command; MULTI ... EXEC is a transaction, a cut-off one never took effect

The file is a whole history only if the server never rewrote it: `cli.run.local_redis.prepare(..., keep_history=True)`.
"""

from collections.abc import Iterator
from pathlib import Path

from shared.errors import UserError

FOLDER = "appendonlydir"
Command = list[bytes]


def transactions(redis_dir: Path) -> Iterator[list[Command]]:
    """What took effect together, in order. Raises UserError where the folder holds no whole history."""
    opened: list[Command] | None = None
    for file in _files(redis_dir):
        data = file.read_bytes()
        if data.startswith(b"REDIS"):
            raise UserError(f"{file} is a snapshot: the server has rewritten its log, and its history is gone.")
        for command in _commands(data):
            name = command[0].upper()
            if name == b"MULTI":
                opened = []
            elif name == b"EXEC":
                yield opened or []
                opened = None
            elif opened is not None:
                opened.append(command)
            else:
                yield [command]


def _files(redis_dir: Path) -> list[Path]:
    folder = redis_dir / FOLDER
    manifests = sorted(folder.glob("*.manifest"))
    if not manifests:
        raise UserError(f"{folder} holds no manifest of an append-only file: Redis 7 or later writes one.")
    lines = [line.split() for line in manifests[0].read_text().splitlines() if line.startswith("file ")]
    # file NAME seq N type b|i|h; history files are rewritten away
    return [folder / words[1] for words in lines if words[5] != "h"]


def _commands(data: bytes) -> Iterator[Command]:
    """A command that a crash cut off at the end is left out, as the server does."""
    at = 0
    while at < len(data):
        if data[at : at + 1] == b"#":  # an annotation
            at = data.index(b"\n", at) + 1
            continue
        try:
            words, at = _command(data, at)
        except (ValueError, IndexError):
            return
        yield words


def _command(data: bytes, at: int) -> tuple[Command, int]:
    count, at = _number(data, at, b"*")
    words = []
    for _ in range(count):
        size, at = _number(data, at, b"$")
        if data[at + size : at + size + 2] != b"\r\n":
            raise ValueError("a word that is cut off")
        words.append(data[at : at + size])
        at += size + 2
    return words, at


def _number(data: bytes, at: int, mark: bytes) -> tuple[int, int]:
    end = data.index(b"\r\n", at)
    if data[at : at + 1] != mark:
        raise ValueError(f"{mark!r} expected at byte {at}")
    return int(data[at + 1 : end]), end + 2
