"""A process is killed with SIGKILL right after its claim, before it knows of it: the next one gets its place."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from shared import gpu_lease, only_one
from shared.config import Config, build
from shared.gpu_lease import GpuLease, mark_of, wait_until_claimed
from shared.learner_mark import LearnerMark
from shared.only_one import OnlyOne, wait_until_begun

REPOSITORY = Path(__file__).resolve().parents[2]
LEASE_S = 1.0
ENOUGH_S = 10.0  # less than the lease of a process that is not told another

CLAIM = f"""
import os, signal, sys, time
import redis
from shared.config import build
from shared.gpu_lease import GpuLease
from shared.learner_mark import LearnerMark
from shared.only_one import OnlyOne

command, claim, url = sys.argv[1:]
answered = getattr(redis.Redis, command)

def last(*args):
    print(answered(*args), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(redis.Redis, command, last)
config = build({{"run": {{"gpus": "lease"}}, "redis": {{"url": url}}}})
lease_s = {LEASE_S}
eval(claim)
time.sleep(60)
"""

Dies = Callable[[str, str], str]


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GPUS", "GPU-a,GPU-b,GPU-c,GPU-d")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(gpu_lease, "RETRY_S", 0.02)
    monkeypatch.setattr(only_one, "LOOK_S", 0.02)


@pytest.fixture
def dies(redis_url: str) -> Dies:
    """Has a process claim and die as Redis has carried out this command; what the answer was."""

    def die(command: str, claim: str) -> str:
        words = [sys.executable, "-c", CLAIM, command, claim, redis_url]
        ended = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        return ended.stdout.strip()

    return die


def config_of(url: str) -> Config:
    return build({"run": {"gpus": "lease"}, "redis": {"url": url}})


def patience() -> Callable[[float], None]:
    """Sleeps, and fails when it has been asked to for too long."""
    deadline = time.monotonic() + ENOUGH_S

    def wait(seconds: float) -> None:
        assert time.monotonic() < deadline
        time.sleep(seconds)

    return wait


@pytest.mark.slow
def test_its_gpus_are_free_when_its_lease_ends(dies: Dies, redis_url: str) -> None:
    assert dies("eval", "GpuLease(config, 'learner', 4, lease_s=lease_s).try_claim()") == "[b'claimed', 0, 1, 2, 3]"
    heir = GpuLease(config_of(redis_url), "learner", 4)
    wait_until_claimed(heir, patience())
    assert len(heir.devices) == 4
    heir.release()


@pytest.mark.slow
def test_its_mark_is_that_of_the_next_learner_when_its_lease_ends(dies: Dies, redis_url: str) -> None:
    assert dies("eval", "LearnerMark(config, lease_s=lease_s).__enter__()") == "1"
    heir, wait = LearnerMark(config_of(redis_url), lease_s=LEASE_S), patience()
    with redis.Redis.from_url(redis_url) as client, heir:
        while client.get(mark_of("run")) != heir._owner.encode():
            wait(0.02)


def test_its_name_is_gone_with_it(dies: Dies, redis_url: str) -> None:
    assert dies("client_setname", "OnlyOne(config, 'learner').try_begin()") == "True"
    heir = OnlyOne(config_of(redis_url), "learner", silent_s=2 * ENOUGH_S)
    wait_until_begun(heir, patience())
    heir.leave()
