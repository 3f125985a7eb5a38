"""How cores are shared between the processes of a run, and that those who are kept to cores are."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.run import plan
from cli.run.pins import Sharing, share
from cli.run.processes import Program, Supervisor
from services.actor.engines.engine import threads_of
from shared.config import Config, build
from shared.cores import available, thread_shares


def config(actors: int, *, pinned: bool = True, ranks: int = 1, **threads: int) -> Config:
    tree: dict[str, Any] = {"run": {"pin_cores": "auto" if pinned else "off"}, "env": {"kind": "single"}}
    tree |= {"actor": {"count": actors, "threads": threads.get("actor", 0)}}
    tree |= {"learner": {"ranks": ranks, "threads": threads.get("learner", 0), "device": "cpu"}}
    return build(tree)


def test_half_of_the_cores_is_the_learners_and_half_the_actors() -> None:
    assert thread_shares(config(2), 2) == (1, 1)
    assert thread_shares(config(2), 16) == (8, 4)
    assert thread_shares(config(2, ranks=4), 16) == (2, 4)
    assert thread_shares(config(0), 16)[0] == 16, "a learner beside whom there are no actors"
    assert thread_shares(config(2, actor=3, learner=5), 2) == (5, 3)


def test_a_service_that_is_started_alone_goes_by_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    assert threads_of(config(3)) == thread_shares(config(3), 12)[1] == 2


def test_learner_and_actors_are_kept_to_cores_of_their_own_and_one_is_left_for_the_rest() -> None:
    sharing = share(config(2), [0, 1, 2, 3, 8, 9, 10, 11, 12])
    assert (sharing.learner, sharing.actor) == (4, 2)
    assert sharing.kept == {
        "learner": (0, 1, 2, 3),
        "actor-0": (8, 9),
        "actor-1": (10, 11),
        "replay": (12,),
        "redis": (12,),
        "env_search": (0, 1, 2, 3, 8, 9, 10, 11),
    }
    assert str(sharing).startswith("kept to cores: learner 0-3, actor-0 8-9, actor-1 10-11, replay 12, redis 12")


def test_on_two_cores_learner_and_actor_have_one_each() -> None:
    assert share(config(1), [4, 7]).kept == {"learner": (4,), "actor-0": (7,)}


@pytest.mark.parametrize("made", [config(1, pinned=False), config(2), config(1, learner=2)])
def test_nobody_is_kept_anywhere_by_default_or_where_the_threads_are_more_than_the_cores(made: Config) -> None:
    sharing = share(made, [0, 1])
    assert (sharing.learner, sharing.actor) == thread_shares(made, 2)
    assert sharing.kept == {}
    assert str(sharing) == "no process is kept to cores of its own"


@settings(max_examples=25)
@given(st.integers(0, 6), st.integers(1, 4), st.integers(1, 64))
def test_nobody_shares_a_core_with_learner_or_actors(actors: int, ranks: int, count: int) -> None:
    sharing: Sharing = share(config(actors, ranks=ranks), range(count))
    own = [core for name, cores in sharing.kept.items() if name == "learner" or "actor" in name for core in cores]
    assert len(own) == len(set(own)) <= count
    assert not sharing.kept or len(own) == sharing.learner * ranks + sharing.actor * actors
    assert not set(sharing.kept.get("replay", ())) & set(own)


def test_services_are_told_their_threads_and_cores() -> None:
    specs = {spec.name: spec for spec in plan.services_of(config(1), range(9))}
    assert specs["learner"].environment["HEADRACE_LEARNER__THREADS"] == "4"
    assert specs["learner"].environment["OMP_NUM_THREADS"] == "4"
    assert specs["actor-0"].environment["HEADRACE_ACTOR__THREADS"] == "4"
    assert (specs["actor-0"].cores, specs["replay"].cores) == ((4, 5, 6, 7), (8,))


@pytest.mark.slow
async def test_a_process_and_what_it_starts_runs_on_the_cores_that_it_is_kept_to(tmp_path: Path) -> None:
    last = available()[-1]
    asks = "import os, time; time.sleep(.3); print(sorted(os.sched_getaffinity(0)), flush=True)"
    code = f"{asks}; import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', {asks!r}])"
    supervisor = Supervisor()
    program = Program("a", [sys.executable, "-I", "-S", "-c", code], dict(os.environ), tmp_path / "log", cores=(last,))
    supervisor.start(program)
    try:
        async with asyncio.timeout(20):
            while (tmp_path / "log").read_text().count("]") < 2 if (tmp_path / "log").exists() else True:
                await asyncio.sleep(0.05)
    finally:
        await supervisor.stop()
    assert (tmp_path / "log").read_text().splitlines()[:2] == [f"[{last}]"] * 2
    assert available()[-1] == last, "the command itself is kept nowhere"
