"""Which weights an evaluation is of, and keeping them while it runs.

    FOLDER, owner/name    a Hugging Face model
    runs/x                the run's newest checkpoint; while it trains, the version published at this moment
    runs/x@2.17           the version 2.17 of that run          runs/x@step_20    its checkpoint

A learner deletes old versions and checkpoints. So those of a run are held: their files get a second name (a hard link,
or a copy where the folder is on another disk) in the evaluation's folder, and nothing the run does later matters.
"""

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cli.run.untrained import LOCK
from shared import checkpoints, weights
from shared.adapters import CONFIG as ADAPTERS
from shared.adapters import base_of
from shared.config import Config, load
from shared.errors import UserError
from shared.evaluation.records import HELD, read_job
from shared.files import is_held
from shared.model_files import find_model
from shared.versions import Version

CONFIG = "config.json"


@dataclass(frozen=True)
class Target:
    """The weights to evaluate."""

    shown: str  # as the user may write it, anywhere, to mean exactly these
    directory: Path
    run_dir: Path | None = None
    training: bool = False  # the run trains at this moment
    base: Path | None = None  # where the directory holds adapters: the model beside which they were trained

    @property
    def held(self) -> bool:
        """Whether the run they belong to may delete them."""
        return self.run_dir is not None


def find_target(word: str, out: str | None = None) -> Target:
    """What the user means, to be evaluated in `out`. UserError in a sentence where there is no such thing, or adapters
    without the model that they belong to.
    """
    target = _find(word, Path(word))
    with suppress(Vanished):
        directory = present(target, out)
        if (directory / ADAPTERS).is_file():
            return replace(target, base=base_of(directory))
    return target


def _find(word: str, path: Path) -> Target:
    if any((path / name).is_file() for name in (CONFIG, ADAPTERS)):
        whole = (path / CONFIG).is_file()
        return _in_run(path.resolve()) or Target(word, find_model(word, "MODEL") if whole else path)
    name, at, which = word.rpartition("@")
    run_dir = Path(name if at else word)
    if (run_dir / "config.toml").is_file():
        return _of_run(run_dir.resolve(), which if at else "")  # one run, from whichever folder it is named
    return Target(word, find_model(word, "MODEL"))


class Vanished(UserError):
    """The weights were deleted by the run they belong to before they could be held."""


def hold(target: Target, folder: Path) -> Path:
    """A directory with the weights that stays: the target's own, or one in `folder`, from this or an earlier call.

    Raises Vanished where the run has deleted them, UserError where a version's files are not those it published.
    """
    if not target.held:
        return target.directory
    held = folder / HELD
    if not held.is_dir():
        aside = folder / f".{HELD}.partial"
        shutil.rmtree(aside, ignore_errors=True)  # of a command that was killed; the folder is this one's alone
        try:
            _link_files(target.directory, aside)
            if not (target.directory / checkpoints.STATE).is_file():  # of a checkpoint without it no digest is known
                weights.verify(aside, weights.digest_in(aside))
        except BaseException as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, FileNotFoundError):
                raise _vanished(target) from None
            raise
        aside.rename(held)
    return held


def present(target: Target, out: str | None) -> Path:
    """A directory that has the weights now: the copy that an evaluation in `out`, or beside the run, holds, or the
    target's own. Raises Vanished where there is none.
    """
    if not target.held or target.directory.is_dir():
        return target.directory
    evaluations = [Path(out)] if out else sorted((target.run_dir or Path()).glob("evals/*"))
    for folder in evaluations:
        job = read_job(folder)
        if job is not None and job.shown_model == target.shown and (folder / HELD).is_dir():
            return folder / HELD
    raise _vanished(target)


def _vanished(target: Target) -> Vanished:
    return Vanished(
        f"{target.shown} is not there (a run keeps its newest versions and checkpoints): name the run alone, "
        "or another checkpoint."
    )


def release(folder: Path) -> None:
    """Give held weights up."""
    shutil.rmtree(folder / HELD, ignore_errors=True)


def is_training(run_dir: Path) -> bool:
    """Whether a command holds the run's folder now."""
    return is_held(run_dir / LOCK)


def run_config(run_dir: Path) -> Config:
    """The configuration the run was started with."""
    return load(run_dir / "config.toml", environ={})


def _of_run(run_dir: Path, which: str) -> Target:
    config, training = run_config(run_dir), is_training(run_dir)
    versions, steps = weights.published(config.weights_dir), checkpoints.steps(config.checkpoints_dir)
    if re.fullmatch(r"\d+\.\d+", which):
        version = Version(*map(int, which.split(".")))
        return Target(f"{run_dir}@{version}", config.weights_dir / version.directory, run_dir, training)
    if re.fullmatch(r"step_\d+", which):
        return Target(f"{run_dir}@{which}", config.checkpoints_dir / which, run_dir, training)
    if which:
        raise UserError(f"'{which}' is no version of {run_dir}: write {run_dir}@2.17 or {run_dir}@step_20.")
    if versions and (training or not steps):
        version = versions[-1]
        return Target(f"{run_dir}@{version}", config.weights_dir / version.directory, run_dir, training)
    if steps:
        name = f"step_{steps[-1]}"
        return Target(f"{run_dir}@{name}", config.checkpoints_dir / name, run_dir, training)
    raise UserError(f"the run in {run_dir} has neither published weights nor written a checkpoint yet.")


def _in_run(directory: Path) -> Target | None:
    """The target of a directory that is a checkpoint or a version of a run."""
    run_dir = directory.parent.parent
    if directory.parent.name not in ("checkpoints", "weights") or not (run_dir / "config.toml").is_file():
        return None
    name = directory.name
    if match := re.fullmatch(r"v(\d+)-(\d+)", name):
        name = str(Version(int(match[1]), int(match[2])))
    return Target(f"{run_dir}@{name}", directory, run_dir, is_training(run_dir))


def _link_files(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.name == checkpoints.STATE or not file.is_file():  # the state is of no use here
            continue
        try:
            os.link(file, target / file.name)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copy2(file, target / file.name)
