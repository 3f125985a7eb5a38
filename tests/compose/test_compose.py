"""The containers as people run them: Atlas through vLLM, scaled, cut off, killed, stopped and started again.

One stack, in the order of the tests. `make test-compose` runs them; `make test` does not.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.compose.stack import RUN, Stack, docker, why_not

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


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if reason := why_not():
        pytest.skip(f"no containers on this machine: {reason}")
    made = Stack(tmp_path_factory.mktemp("stack"), SETTINGS)
    made.compose("build", within_s=1200)
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
    stack.compose("up", "-d", "--no-recreate", "--no-build", "--scale", "actor=1")
    stack.until(lambda: len(stack.actors()) == 1, "one actor", within_s=60)
    before = stack.step()
    stack.until(lambda: stack.step() >= before + 2, "steps with one actor again", within_s=180)
    assert_nothing_lost(stack)


def test_an_actor_cut_off_for_30_seconds_stops_nobody_and_goes_on_afterwards(stack: Stack) -> None:
    stack.compose("up", "-d", "--no-recreate", "--no-build", "--scale", "actor=2")
    stack.until(lambda: len(stack.actors()) == 2, "two actors", within_s=300)
    cut, _ = stack.containers("actor")
    network = f"{stack.project}_default"
    restarts, step = stack.inspect(cut)["RestartCount"], stack.step()
    docker("network", "disconnect", network, cut)
    time.sleep(30)
    assert len(stack.actors()) == 1, "it was really away"
    assert stack.step() > step, "the other one goes on"
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


def test_stopped_and_started_again_it_goes_on_from_its_volumes(stack: Stack) -> None:
    step = stack.step()
    began = time.monotonic()
    stack.compose("stop")
    print(f"stopped within {time.monotonic() - began:.0f} s at step {step}")
    codes = {stack.inspect(id)["State"]["ExitCode"] for id in stack.compose("ps", "-aq").split()}
    assert 137 not in codes, "nobody had to be killed"
    stack.compose("down")  # containers and network; the volumes stay
    stack.compose("up", "-d", "--wait", "--wait-timeout", "600", "--no-build", within_s=660)
    stack.until(lambda: stack.step() >= step + 2, "steps after the restart", within_s=240)
    assert_nothing_lost(stack)
    stack.until(lambda: (stack.compose("exec", "-T", "report", "ls", f"/runs/{RUN}")).count("metrics.jsonl"), "log", 30)
    text = stack.compose("exec", "-T", "report", "cat", f"/runs/{RUN}/metrics.jsonl")
    assert text.count("\n") >= step, "the report went on where it had stopped"


def test_it_ends_by_itself_with_a_summary(stack: Stack) -> None:
    stack.set(SETTINGS | {"HEADRACE_RUN__STEPS": str(stack.step() + 4)})
    stack.compose("down")
    stack.compose("up", "-d", "--no-build")
    stack.until(lambda: not stack.compose("ps", "-q", "learner", "report").split(), "end of the run", within_s=600)
    ended = [stack.inspect(id)["State"]["ExitCode"] for id in stack.compose("ps", "-aq", "learner", "report").split()]
    assert ended == [0, 0]
    assert "summary.json" in stack.compose("logs", "--no-color", "report")
    assert stack.health()["finished"], "the window stays open to look at"


def assert_nothing_lost(stack: Stack) -> None:
    """What must hold at every moment, and that something was counted at all."""
    counted = stack.counted()
    assert counted["trained"] > 0
    assert (counted["lost"], counted["trained_twice"]) == (0, 0), counted
