"""Redis's append-only file, read as the log it is: every write of a run in the order in which it took effect.

    appendonlydir/*.manifest    names the files in order: one base, then increments
    *N CRLF $len CRLF word CRLF ...    one command; MULTI ... EXEC is a transaction, a cut-off one never took effect

The file is a whole history only if the server never rewrote it: `cli.run.local_redis.prepare(..., keep_history=True)`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from shared.errors import UserError

FOLDER = "appendonlydir"
Command = list[bytes]
A_COMMAND = re.compile(rb"\r\n\*\d+\r\n\$\d+\r\n")  # how the next one begins, behind the end of another


class AppendOnlyFile:
    """`cut_off`: bytes at the end that never took effect, known when `transactions` is through: a kill leaves some."""

    def __init__(self, redis_dir: Path) -> None:
        self.cut_off = 0
        self._folder = redis_dir / FOLDER

    def transactions(self) -> Iterator[list[Command]]:
        """What took effect together, in order. Raises UserError where the folder holds no whole history."""
        for file in self._files():
            if self.cut_off:
                raise UserError(f"{file} is behind a file that was cut off: what lay between them is not known.")
            try:
                data = file.read_bytes()
            except OSError as error:
                raise UserError(f"{file} cannot be read, and the log is not whole without it ({error}).") from None
            if data.startswith(b"REDIS"):
                raise UserError(
                    f"{file} is a snapshot: the server has rewritten its log, as that of an ordinary run does, and its "
                    "history is gone: judge a run that `headrace chaos` made, which keeps its log."
                )
            yield from self._transactions(file, data)

    def _transactions(self, file: Path, data: bytes) -> Iterator[list[Command]]:
        opened: list[Command] | None = None
        whole = 0  # where the last transaction ended
        for command, end in _commands(file, data):
            match command[0].upper(), opened:
                case b"MULTI", None:
                    opened = []
                    continue
                case b"EXEC", [*commands]:
                    opened = None
                    yield commands
                case ((b"MULTI" | b"EXEC"), _):
                    raise UserError(f"{file} is damaged before byte {end}: a transaction there is not whole.")
                case _, [*_]:
                    opened.append(command)
                    continue
                case _:
                    yield [command]
            whole = end
        self.cut_off = len(data) - whole

    def _files(self) -> list[Path]:
        manifests = sorted(self._folder.glob("*.manifest"))
        if not manifests:
            raise UserError(f"{self._folder} holds no manifest of an append-only file: Redis 7 or later writes one.")
        lines = [line.split() for line in manifests[0].read_text().splitlines() if line.startswith("file ")]
        # file NAME seq N type b|i|h; history files are rewritten away
        return [self._folder / words[1] for words in lines if words[5] != "h"]


class _CutOff(Exception):
    """The file ends within a command."""


def _commands(file: Path, data: bytes) -> Iterator[tuple[Command, int]]:
    """Each with the byte behind it; one that a crash cut off at the end is left out, as the server does."""
    at = 0
    while at < len(data):
        try:
            if data[at : at + 1] == b"#":  # an annotation
                at = _find(data, b"\n", at) + 1
                continue
            words, at = _command(data, at)
        except (_CutOff, ValueError) as error:
            if isinstance(error, _CutOff) and not A_COMMAND.search(data, at):
                return
            raise UserError(f"{file} is damaged at byte {at} of {len(data)}: its log cannot be read on.") from None
        yield words, at


def _command(data: bytes, at: int) -> tuple[Command, int]:
    """The words, and the byte behind them. Raises _CutOff, and ValueError on bytes that no server writes."""
    count, at = _number(data, at, b"*")
    words = []
    for _ in range(count):
        size, at = _number(data, at, b"$")
        if at + size + 2 > len(data):
            raise _CutOff
        if data[at + size : at + size + 2] != b"\r\n":
            raise ValueError("a word of another length")
        words.append(data[at : at + size])
        at += size + 2
    return words, at


def _number(data: bytes, at: int, mark: bytes) -> tuple[int, int]:
    if not mark.startswith(data[at : at + 1]):
        raise ValueError("another mark")
    end = _find(data, b"\r\n", at)
    if (number := int(data[at + 1 : end])) < 1 - (mark == b"$"):  # a word may be empty, a command not
        raise ValueError("no length")
    return number, end + 2


def _find(data: bytes, what: bytes, at: int) -> int:
    if (found := data.find(what, at)) < 0:
        raise _CutOff
    return found
