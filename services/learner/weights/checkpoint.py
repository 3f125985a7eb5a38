"""Checkpoints: a complete Hugging Face folder per saved step, with the trainer's state beside it.

    <run>/checkpoints/step_20/    config.json  model.safetensors  tokenizer files  trainer_state.pt  manifest.json
    <run>/checkpoints/latest   -> step_20

Written aside, digested, synced, renamed: a folder under its final name is complete. Loading takes the newest one whose
digest is right and names every one it passes over; where there are some and none is right it refuses. What a network
folder refuses for a moment is read again. The state holds tensors and plain values; no code is unpickled.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from shared import checkpoints
from shared.checkpoints import STATE, newest_whole, steps, tried
from shared.errors import UserError
from shared.weights import MANIFEST, digest_of, put_in_place

log = logging.getLogger("headrace")

LATEST = "latest"


def save(root: Path, step: int, write_model: Callable[[Path], None], state: dict[str, Any]) -> Path:
    """Write `step_<step>`: the model by `write_model(folder)`, and `state`. One that is there already is replaced."""
    root.mkdir(parents=True, exist_ok=True)
    final = checkpoints.folder(root, step)
    aside = root / f".step_{step}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    write_model(aside)
    torch.save(state, aside / STATE)
    with ThreadPoolExecutor(1) as pool:  # the disk is slow, and so is the digest
        synced = pool.submit(_sync_folder, aside)
        digest, size = digest_of(aside)
        synced.result()
    (aside / MANIFEST).write_text(json.dumps({"step": step, "digest": digest, "size": size}, indent=1))
    _sync(aside / MANIFEST)
    _sync(aside)
    put_in_place(aside, final)
    _point_latest(root, final.name)
    _sync(root)
    return final


def newest(root: Path, wait: Callable[[float], None] = time.sleep) -> tuple[Path, dict[str, Any]] | None:
    """(folder, state) of the newest whole checkpoint; None when there is none. UserError when all are damaged."""
    folder = newest_whole(root, wait)
    return read(folder, wait) if folder else None


def read(folder: Path, wait: Callable[[float], None] = time.sleep) -> tuple[Path, dict[str, Any]]:
    """(folder, state) of a checkpoint that was found whole."""
    return folder, _load_state(folder / STATE, wait)


def prune(root: Path, keep_last: int, keep_every: int, saved: int) -> None:
    """Delete all but the newest `keep_last`, the multiples of `keep_every` (0: none) and the one that was just `saved`:
    what lies above it may be damaged, and left by a life that it was passed over in.

    One that cannot be deleted stays, with a word in the log.
    """
    for step in steps(root)[:-keep_last]:
        if step != saved and not (keep_every and step % keep_every == 0):
            try:
                _remove(root, f"step_{step}")
            except OSError as error:
                log.warning("an old checkpoint is not deleted: %s", error)


def tidy(root: Path) -> None:
    """What a learner that was killed left behind: unfinished writes go, and `latest` points to the newest step."""
    for leftover in root.glob(".*step_*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for link in root.glob(f".{LATEST}.*"):
        link.unlink(missing_ok=True)
    if there := steps(root):
        _point_latest(root, checkpoints.folder(root, there[-1]).name)


def _load_state(file: Path, wait: Callable[[float], None]) -> dict[str, Any]:
    """Tensors and plain values. UserError for anything else: its digest is right, so somebody wrote it like that."""
    try:
        return tried(file, lambda: _load(file), wait)
    except UnpicklingError:
        raise UserError(
            f"{file} holds more than tensors and plain values and is not loaded, since that could run its code: "
            "put a checkpoint of this run in its place, or delete the folder."
        ) from None
    except (OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} cannot be read ({type(error).__name__}: {str(error).partition(chr(10))[0]}): "
            "put a checkpoint of this run in its place, or delete the folder."
        ) from None


def _load(file: Path) -> dict[str, Any]:
    """What torch.save wrote. Not in its older form: a length in that is believed, and memory asked for, up to 4 GB."""
    with file.open("rb") as start:
        if start.read(4) != b"PK\x03\x04":
            raise ValueError("it is no archive of torch.save")
    return torch.load(file, map_location="cpu", weights_only=True)


def _sync_folder(folder: Path) -> None:
    """Have the disk hold a folder and the files in it, before a rename says that they are complete."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    """fsync of one file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(root: Path, name: str) -> None:
    doomed = root / f".deleted-{name}"
    (root / name).rename(doomed)
    shutil.rmtree(doomed)


def _point_latest(root: Path, name: str) -> None:
    link = root / f".{LATEST}.{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(root / LATEST)
