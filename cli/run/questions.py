"""Which questions a run was started with: a run that is resumed notices when its files have become others.

    <run>/questions.json    of data.train and data.eval: path, BLAKE3 of the file, rows; written at every start

A run's cursor is a position in an order over the rows (shared/prompts/order.py), which their number decides.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from blake3 import blake3

from shared.errors import UserError
from shared.files import write_whole
from shared.weights import update_from

QUESTIONS = "questions.json"


class Mark(msgspec.Struct, frozen=True):
    """What a data set is known by."""

    path: str
    digest: str
    rows: int


def mark_of(source: str, rows: int) -> Mark | None:
    """None for a hub name: there is no file to read."""
    if not (path := Path(source)).is_file():
        return None
    hasher = blake3(max_threads=blake3.AUTO)
    update_from(hasher, path)
    return Mark(source, hasher.hexdigest(), rows)


def keep(run_dir: Path, marks: Mapping[str, Mark]) -> None:
    """For whoever resumes the run."""
    write_whole(run_dir / QUESTIONS, msgspec.json.format(msgspec.json.encode(marks)).decode() + "\n")


def kept(run_dir: Path) -> dict[str, Mark]:
    """By setting; empty where nothing was kept that can be read, as of a run that was started by older code."""
    try:
        return msgspec.json.decode((run_dir / QUESTIONS).read_bytes(), type=dict[str, Mark])
    except (OSError, ValueError, RecursionError):
        return {}


def change(key: str, was: Mark, now: Mark) -> str:
    """What it means that `was` is `now`; empty where they are the same.

    UserError where the training data changed its length unasked: nothing that is left would be asked as it was meant.
    """
    if was.digest == now.digest:
        return ""
    before = f"those of {was.rows} rows in {was.path} that the run was started with"
    if key == "data.eval":
        return f"data.eval: the questions in {now.path} are not {before}: scores from here on are not comparable."
    if was.path == now.path and was.rows != now.rows:
        raise UserError(
            f"data.train: {now.path} has {now.rows} rows, and had {was.rows} when the run was started, so that the "
            "place which the run has reached means other questions: put the file back, or, to go on with the new one, "
            "give it another name and add --data.train NAME."
        )
    return (
        f"data.train: the questions in {now.path} are not {before}: the run goes on among them at the place that it "
        "has reached, so some may be asked twice and some not at all; stored groups keep their questions."
    )
