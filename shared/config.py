"""One configuration per run: a TOML file, then HEADRACE_* variables, then dotted overrides; later ones win.

    headrace up run.toml --learner.lr 2e-6        HEADRACE_LEARNER__LR=2e-6 python -m services.learner

A value is read as TOML where it parses as such, else as a plain string. An unknown key is refused with the nearest
known one; settings that cannot work together are refused with the arithmetic. A relative path in a TOML file means the
file beside that TOML where there is one, else the one under the working directory; elsewhere it means the working
directory.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, model_validator

from shared import settings
from shared.contradictions import UNGATED, contradictions
from shared.errors import UserError
from shared.foreign import first_known
from shared.nearest import hint
from shared.toml_files import as_toml, read_toml
from shared.wrong_values import wrong

ENV_PREFIX = "HEADRACE_"
CONFIG_FILE_VARIABLE = "HEADRACE_CONFIG"
PATH_KEYS = (
    "model.path",
    "model.kl_reference",
    "data.train",
    "data.eval",
    "search.corpus",
    "search.index",
    "search.encoder",
    "weights.dir",
    "weights.received",
    "reward.function",  # FILE.py:NAME
)
# Of .env.example: what compose files alone read. Editors and direnv export an .env of the repository.
COMPOSE_VARIABLES = tuple(
    f"HEADRACE_{name}"
    for name in (
        *("REDIS_PASSWORD", "RUN_CONFIG", "DATA", "ACTORS", "ENGINE", "REDIS_MEMORY", "SHM", "GPU_LEASES", "DRAIN"),
        *("REPLAY_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "PYTHON_IMAGE", "VLLM_IMAGE", "REDIS_IMAGE"),
    )
)
_NOT_SETTINGS = {CONFIG_FILE_VARIABLE, "HEADRACE_REQUIRE_VLLM", "HEADRACE_LOG", "HEADRACE_GPUS", *COMPOSE_VARIABLES}


class Config(settings.Section):
    """The resolved configuration of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: settings.Run = Field(default_factory=settings.Run)
    model: settings.Model = Field(default_factory=settings.Model)
    data: settings.Data = Field(default_factory=settings.Data)
    env: settings.Env = Field(default_factory=settings.Env)
    reward: settings.Reward = Field(default_factory=settings.Reward)
    rollout: settings.Rollout = Field(default_factory=settings.Rollout)
    eval: settings.Eval = Field(default_factory=settings.Eval)
    actor: settings.Actor = Field(default_factory=settings.Actor)
    replay: settings.Replay = Field(default_factory=settings.Replay)
    learner: settings.Learner = Field(default_factory=settings.Learner)
    weights: settings.Weights = Field(default_factory=settings.Weights)
    redis: settings.Redis = Field(default_factory=settings.Redis)
    search: settings.Search = Field(default_factory=settings.Search)

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, given: object) -> object:
        """What the policy's paper sets in the learner, where nothing else is: the resolved configuration shows it."""
        if not isinstance(given, dict):
            return given
        replay, learner = given.get("replay", {}), given.get("learner", {})
        if not isinstance(replay, dict) or not isinstance(learner, dict) or learner.get("loss", "grpo") != "grpo":
            return given
        return given | {"learner": settings.PUBLISHED_WITH.get(str(replay.get("policy")), {}) | learner}

    @property
    def run_dir(self) -> Path:
        """The folder of this run."""
        return Path(self.run.root) / self.run.name

    @property
    def replay_groups(self) -> int:
        """r: how many stored groups a step may replay; half a batch where `replay.select` leaves it open."""
        return 0 if self.replay.policy == "none" else self.replay.select or self.learner.batch // 2

    @property
    def keeps_references(self) -> bool:
        """Whether l_ref of a group stays in Redis once the group is trained, for its replay."""
        return self.learner.reference == "trainer" and self.replay.policy != "none"

    @property
    def drift_decides(self) -> bool:
        """Whether the policy has a gate on Drift: `Policy.gated`, for who does not know the policies."""
        return self.replay.policy not in UNGATED

    def eval_temperature(self, samples: int) -> float:
        """For so many answers to a held-out question; greedy ones would be one and the same."""
        return self.eval.temperature or (0.0 if samples == 1 else self.rollout.temperature)

    @property
    def weights_dir(self) -> Path:
        """The shared folder that holds a directory per published version."""
        return Path(self.weights.dir) if self.weights.dir else self.run_dir / "weights"

    @property
    def received_dir(self) -> Path:
        """A folder of an actor's machine for the versions that travelled to it."""
        return Path(self.weights.received) if self.weights.received else self.run_dir / "received"

    @property
    def checkpoints_dir(self) -> Path:
        """The folder of `step_N` checkpoints."""
        return self.run_dir / "checkpoints"

    @property
    def index_dir(self) -> Path:
        """The folder of the retrieval index."""
        return Path(self.search.index) if self.search.index else self.run_dir / "index"

    def to_toml(self) -> str:
        """The resolved configuration as TOML, readable back by `load`; the Redis password is left out."""
        lines: list[str] = []
        for section, values in self.model_dump().items():
            lines.append(f"[{section}]")
            for key, value in values.items():
                if (section, key) == ("redis", "url"):
                    value = without_password(value)
                lines.append(f"{key} = {as_toml(value)}")
            lines.append("")
        return "\n".join(lines)


def load(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    typed: bool = True,
) -> Config:
    """Read `path`, then `environ`, then `overrides` (`["--learner.lr", "2e-6", "--replay.tau=.01"]`).

    typed: the overrides are flags that somebody typed, and are blamed by name.
    Raises UserError in one sentence for a file that is missing or not TOML, an unknown key, a value of the wrong
    type, or settings that contradict each other.
    """
    environ = os.environ if environ is None else environ
    tree = read_toml(Path(path), "configuration file", "examples/atlas.toml") if path else {}
    if {"study", "arm"} & tree.keys():
        raise UserError(f"{path} is a study, not the configuration of a run: `headrace compare {path}` takes it.")
    tree = _beside(tree, Path(path).parent) if path else tree
    given: dict[str, str] = {}
    for source, pairs in (("", _from_environ(environ)), ("--", parse_overrides(overrides))):
        for dotted, value in pairs:
            _set(tree, dotted, value)
            given[dotted] = source + dotted if source else f"{ENV_PREFIX}{dotted.upper().replace('.', '__')}"
    return build(tree, where=str(path) if path else "the configuration", given=given if typed else None)


def load_service_config(environ: Mapping[str, str] | None = None) -> Config:
    """The configuration of a service started alone: the file HEADRACE_CONFIG names, then the other variables."""
    environ = os.environ if environ is None else environ
    return load(environ.get(CONFIG_FILE_VARIABLE) or None, environ=environ)


def build(tree: dict[str, Any], where: str = "the configuration", given: Mapping[str, str] | None = None) -> Config:
    """Validate a nested mapping; UserError names the key, what is wrong with it, and the nearest right one.

    where: the place that is blamed; given: dotted key -> how it was given, where that was at another place.
    """
    given = given or {}
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        wrong = ".".join(str(part) for part in error.errors()[0]["loc"])
        places = [place for key, place in given.items() if key == wrong or key.partition(".")[0] == wrong]
        raise UserError(f"{places[0] if places else where}: {_sentence(error)}") from None
    for sentence in contradictions(config):
        places = [place for key, place in given.items() if re.search(rf"\b{re.escape(key)}\b", sentence)]
        raise UserError(f"{where}{' with ' if places else ''}{', '.join(places)}: {sentence}")
    return config


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """`--section.key value` or `--section.key=value` pairs, in order."""
    pairs: list[tuple[str, Any]] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or "." not in word:
            raise UserError(f"'{word}' is not an override: write --section.key value, for example --learner.lr 2e-6.")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or (rest[0].startswith("--") and "." in rest[0]):
                raise UserError(f"--{key} has no value: write --{key} VALUE.")
            value = rest.pop(0)
        pairs.append((key, _value(key, value)))
    return pairs


def known_keys() -> list[str]:
    """Every dotted key there is."""
    return [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in field.annotation.model_fields  # type: ignore[union-attr]
    ]


def without_password(url: str) -> str:
    """A URL that may be logged."""
    scheme, sep, rest = url.partition("://")
    shown = f"{scheme}{sep}{rest.rpartition('@')[2]}" if sep else url
    return re.sub(r"(?<=[?&])password=[^&]*&?", "", shown).rstrip("?&")


def _beside(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the paths that exist relative to the TOML's folder absolute; the others stay as they are (hub names too)."""
    for dotted in PATH_KEYS:
        section, _, key = dotted.partition(".")
        table = tree.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if table and isinstance(value, str):
            table[key] = placed(dotted, value, folder)
    return tree


def placed(dotted: str, value: str, folder: Path) -> str:
    """The value of one of PATH_KEYS as an absolute path where `folder` has it, else as it is."""
    path, colon, name = value.rpartition(":") if dotted == "reward.function" else (value, "", "")
    return f"{(folder / path).resolve()}{colon}{name}" if path and (folder / path).exists() else value


def _from_environ(environ: Mapping[str, str]) -> list[tuple[str, Any]]:
    pairs = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in _NOT_SETTINGS:
            continue
        section, separator, key = name[len(ENV_PREFIX) :].lower().partition("__")
        if not separator:
            raise UserError(f"{name} names no setting: write {ENV_PREFIX}SECTION__KEY, as in {ENV_PREFIX}LEARNER__LR.")
        dotted = f"{section}.{key}"
        pairs.append((dotted, _value(dotted, environ[name])))
    return pairs


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    section, _, key = dotted.partition(".")
    table = tree.setdefault(section, {})
    if not isinstance(table, dict):
        raise UserError(f"'{section}' must be a table of settings, as in [{section}].")
    table[key] = value


def _value(dotted: str, text: str) -> Any:
    """What a word of the command line or a variable means: TOML, but for text settings the text itself."""
    if _is_text(dotted) and not text.startswith(('"', "'")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    try:
        return float(text)  # TOML wants a digit before the point: .01
    except ValueError:
        return text


def _is_text(dotted: str) -> bool:
    section, _, key = dotted.partition(".")
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    fields = getattr(sections.get(section), "model_fields", {})
    return key in fields and fields[key].annotation is str


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        if foreign := first_known(key, first.get("input")):
            return f"unknown key '{foreign[0]}'; here it is {foreign[1]} (docs/coming-from.md has more of them)."
        known = known_keys() if "." in key else list(Config.model_fields)
        elsewhere = [k for k in known_keys() if k.endswith("." + key.rpartition(".")[2])]  # where this setting is
        if elsewhere and "." not in key:
            return f"unknown key '{key}'; did you mean {' or '.join(repr(k) for k in elsewhere)}?"
        return f"unknown key '{key}'; {hint(key, elsewhere or known, shown=elsewhere or Config.model_fields)}"
    given = first.get("input")
    shown = f" (given: {given!r})" if not isinstance(given, dict) else ""
    return f"{wrong(key, first)}{shown}."
