"""A study: which runs there are, each as a configuration of its own, with the steps that its budget gives.

    [study]                         [common]                        [[arm]]
    name = "quick"                  "env.latency" = "0.5"           name = "b + naive b/2"
    base = "../atlas.toml"          "replay.max_lag" = 0            settings = {"replay.policy" = "naive"}
    seeds = [0, 1, 2]
    fresh_groups = 960              # of every run: steps = fresh_groups / learner.batch

Runs are matched on fresh groups, replayed ones come on top: that is what replay is for. An arm may name other `steps`.
The order is seed by seed, so that what a machine does over hours falls on all arms alike.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.replay.policies import get_policy
from services.replay.rules import no_slots
from shared.config import PATH_KEYS, Config, load, placed
from shared.errors import UserError
from shared.nearest import hint
from shared.toml_files import read_toml
from shared.wrong_values import wrong

# what the study itself decides for each run
OWN = ("run.name", "run.root", "run.steps", "run.seed", "eval.every", "redis.url")

T = TypeVar("T", bound=BaseModel)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Head(_Table):
    """[study]."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    base: str
    seeds: list[int] = Field(min_length=1)
    fresh_groups: int = Field(ge=1)
    root: str = "runs"  # the study lives in <root>/<name>
    samples: int = Field(default=32, ge=0)  # k of Mean@k and Best@k at the end of each run; 0: no evaluation
    questions: int = Field(default=0, ge=0)  # of the held-out set; 0: all
    held_out_every: int = Field(default=0, ge=0)  # steps; > 0: asked once each while training too, which costs time
    against: str = ""  # the arm that differences are taken to; empty: the first
    pairs: list[tuple[str, str]] = []  # further differences: the first arm against the second
    group_seconds: float = Field(default=0.0, ge=0)  # measured, of a run per fresh group; only for an estimate


class Arm(_Table):
    """[[arm]]."""

    name: str = Field(min_length=1, max_length=60)
    settings: dict[str, Any] = {}
    steps: int = Field(default=0, ge=0)  # 0: fresh_groups / learner.batch


@dataclass(frozen=True)
class Run:
    """One cell of the matrix. budget: fresh groups after which it ends even before its last step; None: no such end."""

    arm: str
    seed: int
    config: Config
    budget: int | None

    @property
    def name(self) -> str:
        """Of the run, and of its folder."""
        return self.config.run.name

    @property
    def wanted(self) -> int:
        """K: how many stored groups a step may replay; 0 under a policy that replays none."""
        policy = get_policy(self.config.replay.policy)
        return 0 if policy.order is no_slots and policy.rollouts is None else self.config.replay_groups


@dataclass(frozen=True)
class Study:
    """All of it. `settings`: what each arm changes, on top of `common`."""

    head: Head
    common: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    runs: list[Run]
    folder: Path

    @property
    def arms(self) -> list[str]:
        """In the order of the file."""
        return list(self.settings)

    @property
    def against(self) -> str:
        """The arm that the others are compared with."""
        return self.head.against or self.arms[0]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(arm, reference) of every difference that is reported."""
        plain = [(arm, self.against) for arm in self.arms if arm != self.against]
        return plain + [pair for pair in self.head.pairs if pair not in plain]


def read_study(file: Path, overrides: Sequence[tuple[str, Any]] = ()) -> Study:
    """Read and check a study; `overrides` go on top of [common]. Raises UserError in one sentence.

    HEADRACE_* variables are not heeded: the file is all there is to a study.
    """
    tree = read_toml(file, "study", "examples/studies/quick.toml")
    if "study" not in tree and tree.keys() & Config.model_fields.keys():
        raise UserError(f"{file} is the configuration of a run, not a study: `headrace up {file}` takes it.")
    _refuse_unknown(file, "", tree, ("study", "common", "arm"))
    head = _validated(file, "[study]", Head, tree.get("study", {}))
    arms_there, common_there = tree.get("arm", []), tree.get("common", {})
    if not isinstance(arms_there, list):
        raise UserError(f"{file}, arm: write [[arm]] before the keys of each arm.")
    if not isinstance(common_there, dict):
        raise UserError(f"{file}, common: it must be one table, [common], of keys and values.")
    arms = [_validated(file, f"[[arm]] {n + 1}", Arm, arm) for n, arm in enumerate(arms_there)]
    _check_names(file, head, [arm.name for arm in arms])
    common = _flat(common_there) | dict(overrides)
    base = file.parent / head.base
    folder = Path(head.root) / head.name
    settings = {arm.name: _flat(arm.settings) for arm in arms}
    typed = {arm.name: [key for key, _ in overrides if key not in settings[arm.name]] for arm in arms}
    configs = {arm.name: _config(file, base, arm.name, common | settings[arm.name], typed[arm.name]) for arm in arms}
    steps = {arm.name: arm.steps or _steps(file, head, arm.name, configs) for arm in arms}
    runs = [
        Run(
            arm.name,
            seed,
            _of_run(configs[arm.name], folder, run_name(arm.name, seed), steps[arm.name], seed),
            None if arm.steps else head.fresh_groups,
        )
        for seed in head.seeds
        for arm in arms
    ]
    return Study(head, common, settings, runs, folder)


def run_name(arm: str, seed: int) -> str:
    """The name of a run's folder: letters, digits and dots of the arm, and the seed."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", arm.replace("/", " over ")).strip("-.") or "arm"
    return f"{slug[:50]}-s{seed}"


def _config(file: Path, base: Path, arm: str, settings: Mapping[str, Any], typed: Sequence[str]) -> Config:
    """`typed`: those of the settings that stand on the command line, and are blamed there."""
    words = [f"--{key}={_word(_beside(file, key, value))}" for key, value in settings.items()]
    for key in settings:
        if key in OWN:
            raise UserError(f"{file}, arm '{arm}': {key} is the study's own: see [study], or leave it away.")
    try:
        config = load(base, words, environ={}, typed=False)
        get_policy(config.replay.policy)
    except UserError as error:
        said = str(error).removeprefix(f"{base}: ")
        words = re.findall(r"[a-z_]+\.\w+", said.partition("did you mean")[0])
        blamed = [f"--{key}" for key in typed if key in words]
        where = f"{', '.join(blamed)} in arm '{arm}' of {file}" if blamed else f"{file}, arm '{arm}'"
        raise UserError(f"{where}: {said}") from None
    if config.redis.url:
        raise UserError(f"{file}: a study starts a Redis for each run: leave redis.url away from {base}.")
    return config


def _of_run(config: Config, folder: Path, name: str, steps: int, seed: int) -> Config:
    own = {"name": name, "root": str(folder / "runs"), "steps": steps, "seed": seed}
    return config.model_copy(update={"run": config.run.model_copy(update=own)})


def _steps(file: Path, head: Head, arm: str, configs: Mapping[str, Config]) -> int:
    batch, budget = configs[arm].learner.batch, head.fresh_groups
    if budget % batch:
        fits = math.lcm(*(c.learner.batch for c in configs.values()))
        near = max(fits, round(budget / fits) * fits)
        raise UserError(
            f"{file}, arm '{arm}': fresh_groups = {budget} is not a multiple of learner.batch = {batch} "
            f"({budget} = {budget // batch} x {batch} + {budget % batch}): {near} fits every arm, or name its steps."
        )
    return budget // batch


def _check_names(file: Path, head: Head, arms: list[str]) -> None:
    if not arms:
        raise UserError(f"{file} has no [[arm]]: name at least one, with the settings it changes.")
    names = [run_name(arm, 0) for arm in arms]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise UserError(f"{file}: the arms '{arms[names.index(name)]}' and '{arms[n]}' have one name as folders.")
    if len(set(head.seeds)) < len(head.seeds):
        raise UserError(f"{file}: seeds = {head.seeds} names a seed twice.")
    for arm in [head.against, *(arm for pair in head.pairs for arm in pair)]:
        if arm and arm not in arms:
            raise UserError(f"{file}: there is no arm '{arm}'; {hint(arm, arms)}")


def _validated(file: Path, where: str, kind: type[T], tree: Any) -> T:
    if not isinstance(tree, dict):
        raise UserError(f"{file}, {where}: it must be a table of keys and values.")
    _refuse_unknown(file, f"{where}, ", tree, tuple(kind.model_fields))
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{file}, {where}: {wrong('.'.join(map(str, first['loc'])), first)}.") from None


def _refuse_unknown(file: Path, where: str, tree: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in tree:
        if key not in known:
            raise UserError(f"{file}, {where}unknown key '{key}'; {hint(key, known)}")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys, whether they were written with quotes ("a.b" = 1) or as tables (a.b = 1)."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _beside(file: Path, key: str, value: Any) -> Any:
    """A path that exists beside the study means that one."""
    return placed(key, value, file.parent) if key in PATH_KEYS and isinstance(value, str) else value


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
