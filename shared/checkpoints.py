"""Where a run's checkpoints lie, and which are whole: `<run>/checkpoints/step_<N>`, a Hugging Face folder each, with
the trainer's state.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shared.errors import UserError
from shared.files import REFUSED
from shared.weights import MANIFEST, digest_of

log = logging.getLogger("headrace")

STATE = "trainer_state.pt"
WAITS_S = (1.0, 2.0, 4.0, 8.0)  # between tries to read what may be back at once
MASTER_BYTES = 4  # of a parameter in float32, where the model's own is smaller
MOMENTS_BYTES = {"adamw": 8, "adamw8bit": 2}  # both moments of a parameter, by learner.optimizer

T = TypeVar("T")


def size_of(parameters: int, bytes_each: int, optimizer: str, *, shards: bool = False) -> int:
    """Bytes of a checkpoint of so many trained parameters: the model's files, float32 masters, both moments.

    bytes_each: of a parameter in the model; 4: it is its own master, which only ranks with `shards` of it write beside.
    """
    masters = 0 if bytes_each == MASTER_BYTES and not shards else MASTER_BYTES
    return parameters * (bytes_each + masters + MOMENTS_BYTES[optimizer])


def folder(root: Path, step: int) -> Path:
    """The checkpoint of this step, whether or not it is there."""
    return root / f"step_{step}"


def steps(root: Path) -> list[int]:
    """The steps of the checkpoints in the folder, ascending, damaged ones included."""
    names = [p.name for p in root.glob("step_*") if p.is_dir()] if root.is_dir() else []
    return sorted(int(n[5:]) for n in names if n[5:].isdigit())


def newest_whole(
    root: Path, wait: Callable[[float], None] = time.sleep, tell: Callable[[str], None] = log.warning
) -> Path | None:
    """The newest checkpoint whose files are the ones that were written; `tell` hears of each that is passed over.

    None where there is no checkpoint at all. UserError where there are some and none is whole: who went on without
    would begin with the weights that the run began with.
    """
    faults = list[str]()
    for step in sorted(tried(root, lambda: steps(root), wait), reverse=True):
        there = folder(root, step)
        fault = _fault(there, wait)
        if not fault:
            for passed in faults:
                tell(f"checkpoint {root / passed}")
            return there
        faults.append(f"{there.name} is passed over: {fault}")
    if faults:
        raise UserError(
            f"{root} holds no whole checkpoint any more ({'; '.join(faults)}): put one back from a backup, or start a "
            "new run under another run.name."
        )
    return None


def tried(what: Path, call: Callable[[], T], wait: Callable[[float], None]) -> T:
    """The result of a call that reads; raises what the system said at the last try, or what a person must mend."""
    for seconds in WAITS_S:
        try:
            return call()
        except OSError as error:
            if error.errno in REFUSED:
                raise
            log.warning("%s cannot be read (%s): trying again in %g s", what, error, seconds)
        wait(seconds)
    return call()


def _fault(there: Path, wait: Callable[[float], None]) -> str:
    try:
        manifest = json.loads(tried(there, (there / MANIFEST).read_text, wait))
        digest, _ = tried(there, lambda: digest_of(there), wait)
        written = manifest["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"it is not complete, or cannot be read ({error})"
    if digest != written:
        return f"its files have digest {digest}, written was {written}"
    return "" if (there / STATE).is_file() else f"{STATE} is missing"
