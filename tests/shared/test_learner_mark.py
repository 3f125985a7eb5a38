"""A learner without a lease is waited for by actors that need one only until it runs."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from shared.gpu_lease import GpuLease, mark_of
from shared.learner_mark import LearnerMark
from tests.shared.test_gpu_lease import config_of

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def actor(monkeypatch, redis_url):
    """Of the same run, on a machine with four GPUs."""
    monkeypatch.setenv("HEADRACE_GPUS", "GPU-a,GPU-b,GPU-c,GPU-d")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    lease = GpuLease(config_of(redis_url, "--run.gpus", "auto"), "actor", 1)
    yield lease
    lease.release()


@pytest.mark.slow
def test_the_mark_lasts_as_long_as_the_learner_and_outlives_an_emptied_server(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        with LearnerMark(config_of(redis_url), lease_s=0.6):
            for _ in range(2):
                wait_until(lambda: client.exists(mark_of("run")))
                client.flushall()
            time.sleep(1.0)
            assert client.exists(mark_of("run")), "renewed"
        assert not client.exists(mark_of("run"))


def test_the_mark_of_another_process_stays_as_it_is(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.set(mark_of("run"), "another")
        with LearnerMark(config_of(redis_url), lease_s=0.6):
            time.sleep(0.3)
        assert client.get(mark_of("run")) == b"another"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [{"HEADRACE_GPUS": "GPU-z"}, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}],
    ids=["the only GPU of its machine", "torchrun"],
)  # fmt: skip
def test_an_actor_on_another_machine_claims_once_the_learner_is_there(actor, redis_url, tmp_path, kind):
    assert not actor.try_claim(), "the learner has not begun"
    words = {
        "HEADRACE_REDIS__URL": redis_url,
        "HEADRACE_RUN__ROOT": str(tmp_path),
        "HEADRACE_MODEL__PATH": str(REPOSITORY / "examples" / "atlas" / "policy"),
        "MASTER_PORT": "0",
    }
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-m", "services.learner"]
    with subprocess.Popen(command, env=environ | words | kind, cwd=REPOSITORY, stderr=subprocess.DEVNULL) as learner:
        try:
            wait_until(actor.try_claim, 60)
        finally:
            learner.kill()
    assert actor.devices == ["GPU-a"]


def wait_until(true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
