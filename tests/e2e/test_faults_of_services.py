"""Real processes that are killed, stopped, slowed down and cut off: each fault shows in a metric of whoever is left
and in `headrace status`, and both say so when it is over.

    redis <-- link -- replay, learner, actor -- link --> env_search
"""

import asyncio
import contextlib
import io
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.chaos.faults import DELAY_S
from cli.chaos.proxy import Link
from cli.main import main
from cli.run import local_redis
from cli.run.ports import free_port
from shared.config import build
from shared.redis_client import wait_until_up
from tests.e2e.command import ATLAS
from tests.e2e.test_services_alone import logs, start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

NAME = "faults"
SERVICES = ("replay", "env_search", "learner", "actor")
TO_REDIS = ("replay", "learner", "actor")
NOTICED_S = 180.0  # 10 to 20 s on an idle machine
START_S = 600.0
STOPPED = "has stopped reporting (hung, stopped, cut off or ended)"


class Services:
    """A run of four processes that never ends by itself."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / NAME
        self.ports = {name: free_port() for name in SERVICES}
        self.server = local_redis.prepare(self.folder, 0)
        self.port = int(self.server.url.rpartition(":")[2].partition("/")[0])
        self.links: dict[str, Link] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.tree: dict[str, dict[str, Any]] = {
            "run": {"name": NAME, "root": str(root), "steps": 100_000},
            "model": {"path": str(ATLAS / "policy")},
            "data": {"train": str(ATLAS / "data" / "train.jsonl"), "eval": str(ATLAS / "data" / "heldout.jsonl")},
            "env": {"prompt": "plain", "topk": 1, "max_turns": 3, "max_observation_tokens": 64, "timeout_s": 1.5},
            "search": {"corpus": str(ATLAS / "data" / "corpus.jsonl"), "stemmer": "none"},
            "rollout": {
                "group_size": 4, "max_prompt_tokens": 32, "max_turn_tokens": 32, "max_tokens": 192, "deadline_s": 60.0
            },
            "eval": {"limit": 2},
            "actor": {"engine": "torch", "threads": 1, "port": self.ports["actor"], "heartbeat_s": 1.0},
            "replay": {"policy": "none", "port": self.ports["replay"]},
            "learner": {"batch": 4, "lr": 1e-4, "device": "cpu", "threads": 1, "port": self.ports["learner"]},
        }  # fmt: skip
        self.tree["env"]["retries"], self.tree["search"]["port"] = 0, self.ports["env_search"]
        (self.folder / "config.toml").write_text(build(self.tree).to_toml())

    def begin(self) -> None:
        """All of them, through links."""
        self.processes["redis"] = subprocess.Popen(self.server.command, stdout=subprocess.DEVNULL)
        wait_until_up(self.server.url, 20)
        for name in (*TO_REDIS, "search"):
            self.links[name] = Link(self.ports["env_search"] if name == "search" else self.port)
        self.link_ports = {name: self.on_loop(link.start()) for name, link in self.links.items()}
        for name in SERVICES:
            self.start(name)

    def on_loop(self, work: Any) -> Any:
        """What a coroutine of the links comes to."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def start(self, name: str) -> None:
        """Once more, or for the first time."""
        url = self.server.url.replace(f":{self.port}/", f":{self.link_ports.get(name, self.port)}/")
        variables = {"HEADRACE_CONFIG": str(self.folder / "config.toml"), "HEADRACE_REDIS__URL": url}
        variables["HEADRACE_ENV__URL"] = f"http://127.0.0.1:{self.link_ports['search']}"
        self.processes[name] = start(name, variables, self.root)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.processes[name].kill()
        self.processes[name].wait()

    def delay(self, seconds: float) -> None:
        """Of every chunk on every link."""
        for link in self.links.values():
            link.delay_s = seconds

    def cut(self, *names: str) -> None:
        """Break these links."""
        for name in names:
            self.loop.call_soon_threadsafe(self.links[name].cut)

    def mend(self) -> None:
        """Every link as it was."""
        for link in self.links.values():
            link.mend()

    def value(self, service: str, metric: str, **labels: str) -> float:
        """Of a service's /metrics; not a number where it says nothing of that, or does not answer."""
        try:
            text = httpx.get(f"http://127.0.0.1:{self.ports[service]}/metrics", timeout=5, trust_env=False).text
        except httpx.TransportError:
            return float("nan")
        name = f"headrace_{service}_{metric}"
        samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
        return next((s.value for s in samples if s.name == name and s.labels == labels), float("nan"))

    def answers(self, service: str) -> bool:
        """Whether Prometheus would call it up."""
        try:
            url = f"http://127.0.0.1:{self.ports[service]}/metrics"
            return httpx.get(url, timeout=2, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def status(self) -> str:
        """What `headrace status` says, without any space: a terminal breaks lines."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            main(["status", str(self.folder)])
        return "".join(said.getvalue().split())

    def until(self, *conditions: Callable[[], bool], within_s: float = NOTICED_S) -> None:
        """All of them have been true, each at some moment."""
        deadline, left = time.monotonic() + within_s, list(conditions)
        while left := [condition for condition in left if not condition()]:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{len(left)} of {len(conditions)} not seen\n{self.status()}\n{logs(self.root)[-6000:]}"
                )
            time.sleep(0.3)

    def says(self, sentence: str) -> Callable[[], bool]:
        """Whether status has it."""
        return lambda: sentence.replace(" ", "") in self.status()

    def says_like(self, pattern: str) -> Callable[[], bool]:
        """The same of a regular expression."""
        return lambda: re.search(pattern.replace(" ", ""), self.status()) is not None

    def shows(self, service: str, metric: str, above: float = 0.0, **labels: str) -> Callable[[], bool]:
        """Whether a metric is above a value."""
        return lambda: self.value(service, metric, **labels) > above

    def is_zero(self, service: str, metric: str, **labels: str) -> Callable[[], bool]:
        """Whether it is back at 0."""
        return lambda: self.value(service, metric, **labels) == 0

    def end(self) -> None:
        """Of everything."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        for link in self.links.values():
            self.on_loop(link.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A run that trains."""
    services = Services(tmp_path_factory.mktemp("faults"))
    try:
        services.begin()
        trains(services, START_S)
        yield services
    finally:
        services.end()


def trains(s: Services, within_s: float = NOTICED_S) -> None:
    """Wait for a step."""
    step = s.value("replay", "step")
    s.until(s.shows("replay", "step", 0.0 if step != step else step), within_s=within_s)


def test_slow_links(run: Services) -> None:
    run.delay(DELAY_S)
    spoken = ("replay", "learner", f"-{run.processes['actor'].pid}-[0-9a-f]+")
    run.until(
        *(run.shows(name, "redis_round_trip_seconds", 1.5 * DELAY_S) for name in TO_REDIS),
        lambda: slow_retrievals(run) > 0,
        *(run.says_like(f"{who}: Redis takes [.0-9]+ s to answer, 3 times in a row: the network") for who in spoken),
        run.says("requests to the retriever took over a quarter of env.timeout_s, after which rollouts are masked out"),
    )
    run.mend()
    run.until(*(lambda name=name: run.value(name, "redis_round_trip_seconds") < DELAY_S for name in TO_REDIS))


def slow_retrievals(s: Services) -> float:
    """Requests of the actor that took more than 0.3 s."""
    return s.value("actor", "retrieval_seconds_count") - s.value("actor", "retrieval_seconds_bucket", le="0.3")


def test_a_learner_that_hangs_and_a_retriever_that_is_cut_off(run: Services) -> None:
    trains(run)
    run.cut("search")
    run.until(run.shows("actor", "retrieval_failures_total"), run.says("gave no result in 1 try ("))
    run.mend()
    trains(run)
    run.processes["learner"].send_signal(signal.SIGSTOP)
    run.until(
        run.shows("replay", "learner_silent_seconds", 10),
        run.says(f"replay: the learner {STOPPED}: no step is trained until it is back."),
        lambda: not run.answers("learner"),
    )
    run.processes["learner"].send_signal(signal.SIGCONT)
    run.until(run.is_zero("replay", "learner_silent_seconds"), run.says("replay: the learner reports again after"))
    trains(run)


def test_a_learner_and_an_actor_that_are_cut_off_from_redis(run: Services) -> None:
    run.cut("learner", "actor")
    run.until(
        *(run.shows(name, "redis_wait_seconds", why="away") for name in ("learner", "actor")),
        run.shows("replay", "learner_silent_seconds", 10),
        run.shows("replay", "silent_actors"),
        run.says_like(rf"actor \S*-{run.processes['actor'].pid}-[0-9a-f]+ has stopped reporting"),
    )
    run.mend()
    run.until(
        *(run.is_zero(name, "redis_wait_seconds", why="away") for name in ("learner", "actor")),
        run.is_zero("replay", "learner_silent_seconds"),
        run.is_zero("replay", "silent_actors"),
    )
    trains(run)


def test_a_replay_that_is_cut_off_hangs_and_is_killed(run: Services) -> None:
    run.cut("replay")
    run.until(run.shows("replay", "redis_wait_seconds", why="away"), run.says("waiting for Redis"))
    run.mend()
    run.until(run.is_zero("replay", "redis_wait_seconds", why="away"))
    run.processes["replay"].send_signal(signal.SIGSTOP)
    run.until(
        run.shows("learner", "replay_silent_seconds", 10),
        run.says(f"learner: replay {STOPPED}: no task is issued and no batch made until it is back."),
        lambda: not run.answers("replay"),
    )
    run.kill("replay")
    run.until(lambda: run.status().count(f"replay {STOPPED}".replace(" ", "")) == 2)  # status has found it too
    run.start("replay")
    run.until(run.is_zero("learner", "replay_silent_seconds"), run.says("learner: replay reports again after"))
    trains(run)


def test_a_retriever_that_hangs_and_goes_on(run: Services) -> None:
    failed = run.value("actor", "retrieval_failures_total")
    run.processes["env_search"].send_signal(signal.SIGSTOP)
    run.until(
        run.shows("actor", "retrieval_failures_total", failed),
        run.says("(no answer within env.timeout_s = 1.5 s)"),
        lambda: not run.answers("env_search"),
    )
    run.processes["env_search"].send_signal(signal.SIGCONT)
    trains(run)


def test_a_retriever_a_learner_and_an_actor_that_are_killed(run: Services) -> None:
    failed = run.value("actor", "retrieval_failures_total")
    run.kill("env_search")
    run.until(run.shows("actor", "retrieval_failures_total", failed), lambda: not run.answers("env_search"))
    run.kill("learner")
    run.kill("actor")
    run.until(
        run.shows("replay", "learner_silent_seconds", 10),
        run.shows("replay", "silent_actors"),
        run.says_like(rf"actor \S*-{run.processes['actor'].pid}-[0-9a-f]+ has stopped reporting"),
        lambda: run.status().count(f"the learner {STOPPED}".replace(" ", "")) == 2,  # once more, of now
    )
