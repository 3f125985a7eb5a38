"""The run's events, kept on disk while it runs.

    <run>/events.jsonl    every event in order, with its stream id; grows over all sessions of a run
    <run>/metrics.jsonl   the "step" events alone, one line per step. A step that is trained again (after a crash, in a
                          later lineage) replaces its line and what came after it, which is void

The stream in Redis is bounded; these files are not. A resumed run reads on behind the last stored id. Records that the
command itself writes (session, ready, memory) have no id.
"""

import json
import os
import re
import time
from io import FileIO
from pathlib import Path
from typing import Any

from cli.run.records import STREAM_ID, is_record
from shared.errors import UserError
from shared.files import write_whole

EVENTS, METRICS = "events.jsonl", "metrics.jsonl"
BEGINNING = "0-0"
MOVED = (
    "{0} was moved or deleted while its run went on: put it back where it was, in the place of what has been written "
    "there since, and start the command again (`headrace up` with --resume {0})."
)


class Recorder:
    """Appends to both files; reading back gives the same records."""

    def __init__(self, run_dir: Path) -> None:
        self.events_path, self.metrics_path = run_dir / EVENTS, run_dir / METRICS
        newest = (_parsed(line) or {} for line in reversed(_lines(self.events_path)))
        self.last_id: str = next((r[STREAM_ID] for r in newest if _is_of_stream(r)), BEGINNING)
        self._last_step = max((r["step"] for r in read_records(self.metrics_path)), default=-1)
        _end_with_newline(self.events_path)
        _end_with_newline(self.metrics_path)
        self._events = self.events_path.open("ab", buffering=0)

    def records(self) -> list[dict[str, Any]]:
        """Everything stored so far, of earlier sessions too; kept on disk alone, since a run may be long."""
        return read_records(self.events_path)

    def recorded(self) -> set[tuple[str, float]]:
        """Id and time of each stored event of the stream."""
        return {(r[STREAM_ID], r["time"]) for r in self.records() if _is_of_stream(r)}

    def add(self, id: bytes, record: dict[str, Any]) -> None:
        """Store an event of the stream. OSError where the disk takes no more; it may be added again then. UserError
        where the folder is elsewhere: one half here and one there would not be put together again.

        A step comes into its own file first: one that is not in events.jsonl yet is read again, and replaces its line.
        """
        self.check_place()
        if record["kind"] == "step":
            self._add_step(record)
        _append(self._events, {STREAM_ID: id.decode(), **record})
        self.last_id = id.decode()

    def note(self, kind: str, **fields: Any) -> None:
        """Store a record of the command's own."""
        _append(self._events, {"kind": kind, "time": time.time(), **fields})

    def is_in_place(self) -> bool:
        """Whether the file that is written to is still the one at its path; True where the disk does not say."""
        try:
            return os.path.samestat(self.events_path.stat(), os.fstat(self._events.fileno()))
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)

    def check_place(self) -> None:
        """UserError where it is not."""
        if not self.is_in_place():
            raise UserError(MOVED.format(self.events_path.parent))

    def close(self) -> None:
        """Both files are complete."""
        self._events.close()

    def _add_step(self, record: dict[str, Any]) -> None:
        step = record["step"]
        if step <= self._last_step:
            before = [r for r in read_records(self.metrics_path) if r["step"] < step]
            write_whole(self.metrics_path, "".join(json.dumps(r) + "\n" for r in before))
        with self.metrics_path.open("ab", buffering=0) as file:
            _append(file, record)
        self._last_step = step


def place(id: str) -> tuple[int, int]:
    """Where an id of a stream stands among others."""
    first, _, second = id.partition("-")
    return int(first), int(second)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a line that a crash cut off, or that is no record of such a file, is left out."""
    records = [record for line in _lines(path) if (record := _parsed(line)) is not None]
    return [record for record in records if record["kind"] == "step"] if path.name == METRICS else records


def _is_of_stream(record: dict[str, Any]) -> bool:
    id = record.get(STREAM_ID)
    return isinstance(id, str) and bool(re.fullmatch(r"\d{1,20}-\d{1,20}", id)) and max(place(id)) < 2**64


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if is_record(record) else None


def _append(file: FileIO, record: dict[str, Any]) -> None:
    """A whole line, or none: a disk that becomes full takes a part of one."""
    line, end = json.dumps(record).encode() + b"\n", file.seek(0, os.SEEK_END)
    try:
        while line:
            line = line[file.write(line) :]
    except OSError:
        file.truncate(end)
        raise


def _end_with_newline(path: Path) -> None:
    if path.is_file() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
