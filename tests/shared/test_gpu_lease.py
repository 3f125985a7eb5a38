"""Leases on GPUs over a real Redis, between real processes: never two on one, and nobody waits for the dead."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import redis

from shared import events, gpu_lease
from shared.config import load
from shared.errors import UserError
from shared.gpu_lease import GpuLease, wait_until_claimed
from shared.gpus import Gpu

GPUS = "GPU-a,GPU-b,GPU-c,GPU-d"
STARTS = 100
ACTORS = 8


def config_of(url, *more):
    return load(None, ["--redis.url", url, "--run.gpus", "lease", *more], environ={})


@pytest.fixture
def gpus(monkeypatch):
    """Four devices by name; whatever a lease makes visible is put back."""
    monkeypatch.setenv("HEADRACE_GPUS", GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(gpu_lease, "RETRY_S", 0.02)


class Leases:
    """Makes leases, each as of a process of its own, and gives them back at the end."""

    def __init__(self, url):
        self.url, self.made = url, []

    def __call__(self, role, *more, count=1, **options):
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
        self.made.append(GpuLease(config_of(self.url, *more), role, count, **options))
        return self.made[-1]

    def claim(self, role, *more, count=1, **options):
        one = self(role, *more, count=count, **options)
        return one if one.try_claim() else None


@pytest.fixture
def lease(redis_url):
    leases = Leases(redis_url)
    yield leases
    for one in leases.made:
        one.release()


def _contend(url, number, barrier, failures):
    """One of the actors: starts a hundred times, and checks by a key of its own that it is alone on its GPU."""
    os.environ["HEADRACE_GPUS"] = GPUS
    gpu_lease.RETRY_S = 0.005
    config = config_of(url, "--learner.device", "cpu")
    with redis.Redis.from_url(url) as client:
        for start in range(STARTS):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            one = GpuLease(config, "actor", 1 if number else 2)  # one of them needs two
            barrier.wait()
            wait_until_claimed(one, time.sleep)
            visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
            if visible != one.devices or len(visible) != (1 if number else 2):
                failures.put((start, number, visible))
            for device in visible:
                if not client.set(f"on:{device}", number, nx=True):
                    failures.put((start, number, device))
            time.sleep(0.002)
            client.delete(*[f"on:{device}" for device in visible])
            one.release()


@pytest.mark.slow
def test_a_hundred_starts_of_eight_actors_on_four_gpus_put_never_two_on_one(redis_url):
    spawn = multiprocessing.get_context("spawn")
    barrier, failures = spawn.Barrier(ACTORS, timeout=120), spawn.SimpleQueue()
    actors = [spawn.Process(target=_contend, args=(redis_url, n, barrier, failures)) for n in range(ACTORS)]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join(240)
    assert [actor.exitcode for actor in actors] == [0] * ACTORS
    assert failures.empty(), failures.get()


def test_the_learner_goes_first_and_the_one_too_many_waits_with_a_sentence(gpus, lease, caplog):
    caplog.set_level("INFO", "headrace")
    early = lease("actor")
    assert not early.try_claim(), "no actor chooses before the learner has"
    assert "the learner of run 'run' has not claimed its GPU yet" in caplog.text
    learner = lease.claim("learner")
    actors = [lease.claim("actor") for _ in range(3)]
    assert {learner.devices[0], *(actor.devices[0] for actor in actors)} == set(GPUS.split(","))
    assert lease.claim("actor") is None
    assert "0 of 4 GPUs are free, and this actor needs 1" in caplog.text
    actors[0].release()
    assert lease.claim("actor") is not None


def test_who_waits_tells_the_run_once(gpus, lease, redis_url):
    waiting = lease("actor")
    for _ in range(3):
        assert not waiting.try_claim()
    with redis.Redis.from_url(redis_url) as client:
        told = events.parse(client.xrange("headrace:{run}:events"))
    assert [record["text"].split(":")[0] for _, record in told] == ["waiting for a GPU"]


def test_several_gpus_are_claimed_all_or_none(gpus, lease):
    assert lease.claim("learner")
    pair = lease.claim("actor", count=2)
    assert len(set(pair.devices)) == 2 and os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(pair.devices)
    assert lease.claim("actor", count=2) is None
    assert lease.claim("actor"), "the last one is still there for who needs one"


@pytest.mark.slow
def test_the_gpu_of_a_dead_process_is_free_when_its_lease_ends(gpus, lease, redis_url):
    holder = (
        "import sys, time; from shared.config import load; from shared.gpu_lease import GpuLease\n"
        f"lease = GpuLease(load(None, {['--redis.url', redis_url, '--run.gpus', 'lease']!r}, environ={{}}), 'learner', "
        "4, lease_s=1.0)\n"
        "assert lease.try_claim(); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    time.sleep(1.5)
    assert lease.claim("actor") is None, "it is renewed while its holder lives"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    again = lease("learner")
    wait_until_claimed(again, time.sleep)
    assert again.devices


def test_a_learner_that_died_keeps_its_place_before_its_actors(gpus, lease, redis_url):
    assert lease.claim("learner", lease_s=0.2)._over.set() is None  # stops renewing
    time.sleep(0.4)
    assert lease.claim("actor") is None
    assert lease.claim("learner")
    assert lease.claim("actor")


def test_a_lease_that_an_emptied_server_forgot_is_taken_again_and_a_lost_one_ends_the_process(gpus, lease, redis_url):
    lost = threading.Event()
    held = lease.claim("learner", lease_s=0.6, on_lost=lost.set)
    key = f"headrace:{{gpus}}:lease:{held.devices[0]}"
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        deadline = time.monotonic() + 10
        while client.get(key) != held.owner.encode():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not lost.is_set()
        client.set(key, "somebody else")
        assert lost.wait(10)
        held.release()
        assert client.get(key) == b"somebody else", "only one's own is given back"


def test_nobody_claims_where_there_is_nothing_to_divide(gpus, lease, monkeypatch):
    cases = [("share", GPUS), ("auto", "GPU-a")]
    for how, named in cases:
        monkeypatch.setenv("HEADRACE_GPUS", named)
        one = lease("actor", "--run.gpus", how)
        assert one.try_claim() and not one.devices and os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert lease("learner", "--learner.device", "cpu").needed is False
    assert lease("actor", "--run.gpus", "auto").needed is False
    monkeypatch.setenv("HEADRACE_GPUS", GPUS)
    assert lease("actor", "--run.gpus", "auto").needed


def test_a_driver_that_fails_is_asked_again(gpus, lease, monkeypatch, caplog):
    answers = [None, None, None, ["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"]]

    def listed():
        named = answers.pop(0)
        return named if named is None else [Gpu(name) for name in named]

    monkeypatch.setattr(gpu_lease, "visible_gpus", listed)
    one = lease("actor", "--run.gpus", "auto", "--learner.device", "cpu")
    with caplog.at_level("INFO", "headrace"):
        assert not one.try_claim()
    assert "nvidia-smi fails" in caplog.text
    assert one.try_claim()
    assert one.devices == ["GPU-a"]


def test_too_few_gpus_for_one_process_are_refused_at_once(gpus, lease):
    with pytest.raises(UserError, match="needs 5 GPUs and sees 4"):
        lease("actor", count=5).try_claim()


def test_a_lease_without_any_gpu_is_refused(gpus, lease, monkeypatch):
    monkeypatch.setenv("HEADRACE_GPUS", " ,")
    with pytest.raises(UserError, match="nvidia-smi shows no GPU here"):
        lease("actor")


def test_the_actor_claims_before_torch_is_imported():
    probe = (
        "import sys, services.actor.service, services.learner.__main__, shared.gpu_lease\n"
        "print([name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
