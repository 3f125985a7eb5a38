"""Actors leave by themselves when replay has declared the run finished, and let go of their GPUs."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import redis

from services.actor import run_over
from services.actor.service import serve
from services.replay.records import Counters
from shared.config import Config, build
from shared.gpu_lease import GpuLease
from shared.redis_client import connect_async
from tests.actor.running import KEYS, REPOSITORY, heartbeats
from tests.actor.scripted_engine import ScriptedEngine

STEPS = 4


@pytest.fixture
def config(make_config: Callable[..., Config], redis_url: str) -> Config:
    return make_config(redis={"url": redis_url}, env={"kind": "single"}, run={"steps": STEPS})


def say_where_the_run_is(client: redis.Redis, step: int, finished: bool) -> None:
    client.set(KEYS.state, msgspec.json.encode(Counters(started=time.time(), step=step, finished=finished)))


@pytest.fixture
def start(config: Config, monkeypatch: pytest.MonkeyPatch) -> Callable[..., asyncio.Task[None]]:
    """An actor in this process that looks often; no task is sent to it."""
    monkeypatch.setattr(run_over, "LOOK_S", 0.1)
    return lambda config=config: asyncio.create_task(serve(config, ScriptedEngine(lambda ids, sampling: ([], "eos"))))


async def until_it_reports(client: redis.Redis) -> None:
    while not heartbeats(client):
        await asyncio.sleep(0.05)


async def test_an_actor_leaves_once_the_run_is_finished_and_not_before(
    client: redis.Redis, start: Callable[..., asyncio.Task[None]]
) -> None:
    say_where_the_run_is(client, STEPS, False)  # the last evaluation is still open
    actor = start()
    async with asyncio.timeout(20):
        await until_it_reports(client)
        await asyncio.sleep(0.5)  # five looks
        assert not actor.done()
        say_where_the_run_is(client, STEPS, True)
        await actor
    assert not heartbeats(client), "it signed off"


async def test_an_actor_of_a_run_that_goes_on_to_more_steps_does_not_take_the_old_end_for_its_own(
    client: redis.Redis, start: Callable[..., asyncio.Task[None]]
) -> None:
    say_where_the_run_is(client, STEPS - 1, True)
    actor = start()
    async with asyncio.timeout(20):
        await until_it_reports(client)
        assert not actor.done()
        say_where_the_run_is(client, STEPS, True)
        await actor


@contextmanager
def actor_process(config: Config, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`python -m services.actor` on a machine of two GPUs."""
    (folder / "actor.toml").write_text(config.to_toml())
    told = {"HEADRACE_CONFIG": str(folder / "actor.toml"), "HEADRACE_REDIS__URL": config.redis.url}
    environment = os.environ | told | {"HEADRACE_GPUS": "GPU-a,GPU-b", "HEADRACE_RUN__GPUS": "lease"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-m", "services.actor"]
    with subprocess.Popen(command, env=environment, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_one_that_waits_for_a_gpu_and_one_that_comes_after_the_end_leave_with_status_0(
    client: redis.Redis, config: Config, tmp_path: Path
) -> None:
    with actor_process(config, tmp_path) as waiting:
        assert waiting.stderr is not None
        assert any("waiting for a GPU: the learner" in line for line in iter(waiting.stderr.readline, ""))
        say_where_the_run_is(client, STEPS, True)
        assert waiting.wait(60) == 0
    with actor_process(config, tmp_path) as late:
        assert late.wait(60) == 0
        assert late.stderr is not None and "has finished its 4 steps: this actor leaves" in late.stderr.read()
    assert not heartbeats(client), "no newcomer was ever announced"


async def test_the_gpu_of_an_actor_that_left_at_the_end_is_free(
    client: redis.Redis,
    config: Config,
    start: Callable[..., asyncio.Task[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_GPUS", "GPU-a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # put back afterwards
    tree = config.model_dump()
    tree["run"]["gpus"], tree["learner"]["device"] = "lease", "cpu"
    config = build(tree)
    actor = start(config)
    async with asyncio.timeout(20):
        await until_it_reports(client)
        other = GpuLease(config, "actor", 1)
        assert not other.try_claim()
        say_where_the_run_is(client, STEPS, True)
        await actor
    assert other.try_claim() and other.devices == ["GPU-a"]
    other.release()


async def test_counters_that_cannot_be_read_say_nothing_of_an_end(config: Config, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(KEYS.state, b"\xff")
    async with connect_async(redis_url) as client:
        await run_over.raise_if_over(config, client)
