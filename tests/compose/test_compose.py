"""The containers as people run them: Atlas through vLLM, scaled, cut off, killed, stopped and started again.

One stack, in the order of the tests. `make test-compose` runs them; `make test` does not.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.compose.stack import REPOSITORY, RUN, Stack, docker, why_not

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(1500)]

SETTINGS = {
    "HEADRACE_RUN__STEPS": "1000",
    "HEADRACE_EVAL__LIMIT": "8",
    "HEADRACE_EVAL__EVERY": "0",
    "HEADRACE_LEARNER__BATCH": "4",
    "HEADRACE_LEARNER__THREADS": "1",
    "HEADRACE_LEARNER__CHECKPOINT_EVERY": "2",
    "HEADRACE_REPLAY__SELECT": "2",
    "HEADRACE_REPLAY__CAPACITY": "12",
    "HEADRACE_ACTOR__GROUPS": "2",
    "HEADRACE_ACTOR__THREADS": "1",
}
PORTS = {"replay": ["127.0.0.1"]}  # of a run without monitoring, nothing else is published
USERS = {"redis": "redis"}  # the others: 10001
LIMIT_S = 20 * 60  # for all of it, the build of the images included
LEFT_MS = 15_000  # a task that nobody has renewed for so long is anybody's


@pytest.fixture(scope="module")
def clock(note: Callable[[str], None]) -> Iterator[Callable[[], float]]:
    """Seconds since the first test began."""
    began = time.monotonic()
    yield lambda: time.monotonic() - began
    note(f"all of it took {time.monotonic() - began:.0f} s")


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, clock: Callable[[], float], note: Callable[[str], None]
) -> Iterator[Stack]:
    if reason := why_not():
        pytest.skip(f"no containers on this machine: {reason}")
    made = Stack(tmp_path_factory.mktemp("stack"), SETTINGS)
    made.compose("build", within_s=1200)
    note(f"images built, or found, within {clock():.0f} s")
    for image in sorted(set(made.compose("config", "--images").split())):
        note(f"{image}: {int(docker('image', 'inspect', '--format', '{{.Size}}', image)) / 1e9:.2f} GB")
    yield made
    made.down()


def test_it_comes_up_healthy_and_trains(stack: Stack) -> None:
    stack.compose("up", "-d", "--wait", "--wait-timeout", "600", within_s=660)
    stack.until(lambda: stack.step() >= 10, "ten steps", within_s=420)


def test_nothing_runs_as_root_and_only_the_window_is_published(stack: Stack) -> None:
    for service in ("redis", "replay", "env-search", "learner", "actor", "report"):
        (container,) = stack.containers(service)
        told = stack.inspect(container)
        host, config = told["HostConfig"], told["Config"]
        uid = stack.compose("exec", "-T", service, "id", "-u").strip()
        assert uid != "0" and (uid == "10001" or service in USERS), service
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        bound = {b["HostIp"] for bindings in (told["NetworkSettings"]["Ports"] or {}).values() for b in bindings or []}
        assert sorted(bound) == PORTS.get(service, []), service
        assert stack.password not in " ".join([told["Path"], *told["Args"], *(config["Cmd"] or [])]), service


def test_actors_are_scaled_up_and_down_while_it_trains(stack: Stack) -> None:
    (first,), before = stack.actors(), stack.step()
    stack.compose("up", "-d", "--no-recreate", "--no-build", "--scale", "actor=3")
    stack.until(lambda: len(stack.actors()) == 3, "three actors", within_s=300)
    joined = {id: step for id, step in stack.actors().items() if id != first}
    assert min(joined.values()) >= before - 1, "newcomers begin with the weights of the day"
    before = stack.step()
    stack.until(lambda: stack.step() >= before + 2, "steps with three actors", within_s=180)
    answered = stack.answering(scraped())
    assert answered == {"replay": [True], "env-search": [True], "learner": [True], "actor": [True] * 3}
    stack.compose("up", "-d", "--no-recreate", "--no-build", "--scale", "actor=1")
    assert [idle for _, idle in stack.handed_back() if idle < LEFT_MS] == [], "handed back, not left to be reclaimed"
    stack.until(lambda: len(stack.actors()) == 1, "one actor", within_s=60)
    before = stack.step()
    stack.until(lambda: stack.step() >= before + 2, "steps with one actor again", within_s=180)
    assert_nothing_lost(stack)


def scraped() -> list[tuple[str, int]]:
    """The names and ports by which Prometheus finds the services."""
    jobs = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    found = [entry for job in jobs for entry in job["dns_sd_configs"]]
    return [(name, entry["port"]) for entry in found for name in entry["names"]]


def test_an_actor_cut_off_for_30_seconds_stops_nobody_and_goes_on_afterwards(stack: Stack) -> None:
    stack.compose("up", "-d", "--no-recreate", "--no-build", "--scale", "actor=2")
    stack.until(lambda: len(stack.actors()) == 2, "two actors", within_s=300)
    cut, _ = stack.containers("actor")
    network = f"{stack.project}_default"
    restarts, step = stack.inspect(cut)["RestartCount"], stack.step()
    docker("network", "disconnect", network, cut)
    time.sleep(30)
    assert len(stack.actors()) == 1, "it was really away"
    stack.until(lambda: stack.step() > step, "a step of the other one", within_s=60)  # it reclaims tasks after 15 s
    docker("network", "connect", "--alias", "actor", network, cut)
    stack.until(lambda: len(stack.actors()) == 2, "the actor that was away", within_s=120)
    step = stack.step()
    stack.until(lambda: stack.step() >= step + 2, "steps after the cut", within_s=240)
    assert stack.inspect(cut)["RestartCount"] == restarts, "it waited instead of dying"
    assert_nothing_lost(stack)


def test_replay_killed_is_started_again_and_goes_on(stack: Stack) -> None:
    (replay,) = stack.containers("replay")
    told = stack.inspect(replay)
    step, restarts = stack.step(), told["RestartCount"]
    # `docker kill` would count as a stop by hand, which no restart policy undoes
    os.kill(told["State"]["Pid"], signal.SIGKILL)
    stack.until(lambda: stack.inspect(replay)["RestartCount"] == restarts + 1, "restart of replay", within_s=60)
    stack.until(lambda: stack.step() >= step + 2, "steps after the kill", within_s=240)
    assert_nothing_lost(stack)


def test_stopped_and_started_again_it_goes_on_from_its_volumes(stack: Stack, note: Callable[[str], None]) -> None:
    step = stack.step()
    began = time.monotonic()
    stack.compose("stop")
    note(f"stopped within {time.monotonic() - began:.0f} s at step {step}")
    codes = {stack.inspect(id)["State"]["ExitCode"] for id in stack.compose("ps", "-aq").split()}
    assert 137 not in codes, "nobody had to be killed"
    stack.compose("down")  # containers and network; the volumes stay
    stack.compose("up", "-d", "--wait", "--wait-timeout", "600", "--no-build", within_s=660)
    stack.until(lambda: stack.step() >= step + 2, "steps after the restart", within_s=240)
    assert_nothing_lost(stack)
    stack.until(lambda: (stack.compose("exec", "-T", "report", "ls", f"/runs/{RUN}")).count("metrics.jsonl"), "log", 30)
    text = stack.compose("exec", "-T", "report", "cat", f"/runs/{RUN}/metrics.jsonl")
    assert text.count("\n") >= step, "the report went on where it had stopped"


def test_a_backup_that_is_restored_into_empty_volumes_goes_on_and_ends_by_itself_with_a_summary(stack: Stack) -> None:
    backup, restore = documented("Backup and restore")
    trained = stack.counted()["trained"]
    for line in backup:
        stack.shell(line)
    stack.until(lambda: stack.step() >= 0, "replay after the backup", within_s=120)
    steps = stack.step() + 4
    stack.set(SETTINGS | {"HEADRACE_RUN__STEPS": str(steps)})
    stack.compose("down")
    docker("volume", "rm", f"{stack.project}_runs", f"{stack.project}_redis")
    for line in restore:
        stack.shell(line)
    stack.until(lambda: not stack.compose("ps", "-q", "learner", "actor", "report").split(), "end of the run", 600)
    ended = [stack.inspect(id) for id in stack.compose("ps", "-aq", "learner", "actor", "report").split()]
    assert [(one["State"]["ExitCode"], one["RestartCount"]) for one in ended] == [(0, 0)] * 3
    assert "summary.json" in stack.compose("logs", "--no-color", "report")
    assert stack.health()["finished"], "the window stays open to look at"
    assert stack.counted()["trained"] > trained, "replay went on from what it had"
    text = stack.compose("run", "--rm", "--no-deps", "-T", "report", "cat", f"/runs/{RUN}/metrics.jsonl")
    assert text.count("\n") >= steps, "and the report as well"
    assert_nothing_lost(stack)


def documented(section: str) -> list[list[str]]:
    """The commands of a section of docs/operations.md, block by block, without their comments."""
    text = (REPOSITORY / "docs" / "operations.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [[line.partition("  #")[0].rstrip() for line in block.splitlines()] for block in blocks]


def test_an_actor_that_comes_after_the_end_leaves_at_once(stack: Stack) -> None:
    stack.compose("run", "--rm", "--no-deps", "-T", "actor", within_s=120)  # fails where it does not exit with 0


def test_all_of_it_takes_at_most_twenty_minutes(stack: Stack, clock: Callable[[], float]) -> None:
    assert clock() <= LIMIT_S


def assert_nothing_lost(stack: Stack) -> None:
    """What must hold at every moment, and that something was counted at all."""
    counted = stack.counted()
    assert counted["trained"] > 0
    assert (counted["lost"], counted["trained_twice"]) == (0, 0), counted
