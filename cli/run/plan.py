"""Which processes a configuration needs on this machine, with the environment of each. Nothing is started here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cli.run.pins import share
from shared import config as configuration
from shared.config import Config
from shared.errors import UserError

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_LOCAL_HOSTS = {"127.0.0.1", "localhost", "::1", "0.0.0.0"}
HIGHEST_PORT = 65535
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class ServiceSpec:
    """One process: `name` is unique in the run (actor-1), `service` is the package (actor)."""

    name: str
    service: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()  # that it is kept to; empty: it may run anywhere

    @property
    def may_finish(self) -> bool:
        """Whether it ends by itself when the run is over."""
        return self.service in ("learner", "actor")

    @property
    def module(self) -> str:
        """What `python -m` runs."""
        return f"services.{self.service}"


def services_of(config: Config, cores: Sequence[int]) -> list[ServiceSpec]:
    """The processes of a run on these cores in the order in which they start; the light ones come first."""
    sharing = share(config, cores)

    def spec(name: str, service: str, count: int, environment: Mapping[str, str]) -> ServiceSpec:
        return ServiceSpec(name, service, {**threads(count), **environment}, sharing.kept.get(name, ()))

    specs = [spec("replay", "replay", 1, {})]
    if serves_search(config):
        specs.append(spec("env_search", "env_search", max(1, len(cores) // 2), {}))
    # said outright, since a process that is kept to its cores takes them for the whole machine
    specs.append(spec("learner", "learner", sharing.learner, {"HEADRACE_LEARNER__THREADS": str(sharing.learner)}))
    for number in range(config.actor.count):
        environment = {"HEADRACE_ACTOR__THREADS": str(sharing.actor)}
        if config.actor.port:
            environment["HEADRACE_ACTOR__PORT"] = str(config.actor.port + number)
        specs.append(spec(f"actor-{number}", "actor", sharing.actor, environment))
    return specs


def threads(count: int) -> dict[str, str]:
    """The variables by which numerical libraries learn how many threads they may use."""
    return {name: str(count) for name in _THREAD_VARIABLES}


def serves_search(config: Config) -> bool:
    """Whether `headrace up` starts the retriever: a search run with a corpus, whose env.url is search.port here."""
    return (
        config.env.kind == "search"
        and bool(config.search.corpus)
        and is_own_retriever(config.env.url, config.search.port)
    )


def is_own_retriever(url: str, port: int) -> bool:
    """Whether `url` means this machine at `port`, however it is written."""
    try:
        return is_this_machine(url) and urlsplit(url).port == port
    except ValueError:  # no address at all, which is said where it would be asked
        return False


def is_this_machine(url: str) -> bool:
    """Whether the host of `url` is the loopback."""
    return (urlsplit(url).hostname or "") in _LOCAL_HOSTS


def with_values(config: Config, values: Mapping[str, object]) -> Config:
    """The configuration with some dotted keys set anew, checked again."""
    tree = config.model_dump()
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        tree[section][key] = value
    return configuration.build(tree)


def absolute_paths(config: Config) -> Config:
    """Local paths made absolute, so that a run can be resumed from any working directory; hub names stay."""
    values: dict[str, object] = {"run.root": str(Path(config.run.root).resolve())}
    dumped = config.model_dump()
    for dotted in configuration.PATH_KEYS:
        section, _, key = dotted.partition(".")
        value = dumped[section][key]
        written_here = dotted in ("search.index", "weights.dir", "weights.received")
        if value:
            values[dotted] = str(Path(value).resolve()) if written_here else configuration.placed(dotted, value, Path())
    return with_values(config, values)


def search_url(port: int) -> str:
    """Where the retriever that `headrace up` starts answers: env.url, unless the user wrote another."""
    return f"http://127.0.0.1:{port}"


def service_url(host: str, port: int) -> str:
    """Where a service that listens on `host` answers on this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{reachable}:{port}"


def child_environment(config_file: Path, redis_url: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service.

    HEADRACE_SECTION__KEY variables of this shell are in the resolved file already and would win over its overrides. The
    Redis address goes through the environment: it holds the password, which no command line and no readable file shows.
    """
    kept = {k: v for k, v in os.environ.items() if not (k.startswith(configuration.ENV_PREFIX) and "__" in k)}
    roots = [str(PACKAGE_ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(roots),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        configuration.CONFIG_FILE_VARIABLE: str(config_file),
        "HEADRACE_REDIS__URL": redis_url,
        **extra,
    }


def ports_of(c: Config) -> list[tuple[str, str, int]]:
    """(setting, address, port) of each port that is set. UserError where two are the same, or one is too high."""
    metrics = c.run.metrics_host
    wanted = [("replay.port", c.replay.host, c.replay.port)]
    if serves_search(c):
        wanted.append(("search.port", c.search.host, c.search.port))
    if c.learner.port:
        wanted.append(("learner.port", metrics, c.learner.port))
    if c.actor.port:
        last = c.actor.port + c.actor.count - 1
        if last > HIGHEST_PORT:
            raise UserError(
                f"actor.port = {c.actor.port} with actor.count = {c.actor.count} needs the ports up to {last}, and "
                f"the highest is {HIGHEST_PORT}: set actor.port to {HIGHEST_PORT + 1 - c.actor.count} or less."
            )
        wanted += [("actor.port", metrics, c.actor.port + n) for n in range(c.actor.count)]
    seen: dict[int, str] = {}
    for key, _, port in wanted:
        if port in seen:
            ports = " (a port for each actor, from actor.port on)" if key == "actor.port" else ""
            raise UserError(f"{key} and {seen[port]} are both {port}{ports}: choose two ports.")
        seen[port] = key
    return wanted
