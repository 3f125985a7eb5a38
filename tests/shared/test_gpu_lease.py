"""Leases on GPUs over a real Redis, between real processes: never two on one, and nobody waits for the dead."""

import asyncio
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import redis

from cli.chaos.proxy import Link
from cli.run.ports import free_port
from shared import events, gpu_lease
from shared.config import load
from shared.errors import UserError
from shared.gpu_lease import GpuLease, until_claimed, wait_until_claimed
from shared.gpus import Gpu
from tests.tiny_model import write_model

REPOSITORY = Path(__file__).resolve().parents[2]
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
    """The learner (0) or an actor: starts a hundred times, and checks by a key for each GPU that nobody shares it."""
    os.environ["HEADRACE_GPUS"] = GPUS
    gpu_lease.RETRY_S = 0.005
    config = config_of(url)
    role, count = ("actor" if number else "learner"), (2 if number == 1 else 1)
    with redis.Redis.from_url(url) as client:
        for start in range(STARTS):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            one = GpuLease(config, role, count)
            barrier.wait()
            wait_until_claimed(one, time.sleep)
            visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
            if visible != one.devices or len(visible) != count or not client.exists("headrace:{gpus}:learner:run"):
                failures.put((start, number, visible))
            for device in visible:
                if not client.set(f"on:{device}", number, nx=True):
                    failures.put((start, number, device))
            if number:
                time.sleep(0.002)
            else:
                barrier.wait()  # as in a run, the learner stays on its GPU while actors come and go
            client.delete(*[f"on:{device}" for device in visible])
            one.release()
            if number:
                barrier.wait()


@pytest.mark.slow
def test_a_hundred_starts_of_a_learner_and_eight_actors_on_four_gpus_put_never_two_on_one(redis_url):
    spawn = multiprocessing.get_context("spawn")
    barrier, failures = spawn.Barrier(1 + ACTORS, timeout=120), spawn.SimpleQueue()
    contenders = [spawn.Process(target=_contend, args=(redis_url, n, barrier, failures)) for n in range(1 + ACTORS)]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join(400)
    assert [contender.exitcode for contender in contenders] == [0] * (1 + ACTORS)
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


def test_a_claim_whose_reply_was_lost_does_not_stand_in_its_own_way(gpus, lease, redis_url):
    one = lease("learner", count=3)
    keys = [one._mark, *(f"headrace:{{gpus}}:lease:{gpu}" for gpu in GPUS.split(","))]
    one._script(gpu_lease._CLAIM, keys, [3, "learner"])
    assert one.try_claim()
    assert lease.claim("actor").devices == ["GPU-d"]


def test_several_gpus_are_claimed_all_or_none(gpus, lease):
    assert lease.claim("learner")
    pair = lease.claim("actor", count=2)
    assert len(set(pair.devices)) == 2 and os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(pair.devices)
    assert lease.claim("actor", count=2) is None
    assert lease.claim("actor"), "the last one is still there for who needs one"


@pytest.fixture
def holder(redis_url):
    """A process that has claimed all GPUs as the learner, for leases of a second."""
    code = (
        "import logging, time; from shared.config import load; from shared.gpu_lease import GpuLease\n"
        f"lease = GpuLease(load(None, {['--redis.url', redis_url, '--run.gpus', 'lease']!r}, environ={{}}), 'learner', "
        "4, lease_s=1.0)\n"
        "logging.basicConfig(); assert lease.try_claim(); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_the_gpu_of_a_dead_process_is_free_when_its_lease_ends(gpus, lease, holder):
    time.sleep(1.5)
    assert lease.claim("actor") is None, "it is renewed while its holder lives"
    holder.kill()
    again = lease("learner")
    wait_until_claimed(again, time.sleep)
    assert again.devices


@pytest.mark.slow
def test_a_holder_that_was_stopped_ends_when_it_goes_on_and_leaves_its_gpu_to_who_has_claimed_it(gpus, lease, holder):
    holder.send_signal(signal.SIGSTOP)
    heir = lease("learner", count=4)
    wait_until_claimed(heir, time.sleep)
    holder.send_signal(signal.SIGCONT)
    assert holder.wait(5) == 1
    assert "this process ends at once" in holder.stderr.read()
    assert lease.claim("actor") is None, "what the heir holds was not given back"


@pytest.mark.slow
def test_a_redis_that_was_away_for_longer_than_a_lease_comes_back_to_no_holder(gpus, lease, holder, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.client_pause(3000)  # ms; whoever asks hears nothing until then, as from a stopped server
    assert holder.wait(2.5) == 1, "before Redis can promise its GPU to another"
    assert "GPU-a, GPU-b, GPU-c, GPU-d could not be renewed" in holder.stderr.read()
    heir = lease("learner", count=4)
    wait_until_claimed(heir, time.sleep)
    assert len(heir.devices) == 4


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "silent"])
async def test_a_holder_that_is_cut_off_has_left_before_another_can_claim(gpus, lease, redis_url, how):
    direct = urlsplit(redis_url)
    link = Link(direct.port)
    through = redis_url.replace(f":{direct.port}/", f":{await link.start()}/")
    left = []
    held = GpuLease(config_of(through), "learner", 4, lease_s=1.5, on_lost=lambda: left.append(time.monotonic()))
    assert await asyncio.to_thread(held.try_claim)
    await asyncio.sleep(2.0)
    assert not left, "a holder that can renew stays"
    if how == "cut":
        link.cut()
    else:
        link.delay_s = 60.0  # nothing breaks; nothing arrives either
    heir = lease("learner", count=4)
    await until_claimed(heir, lambda: asyncio.sleep(0))
    claimed = time.monotonic()
    assert left and left[0] < claimed - 0.1
    await link.close()
    await asyncio.to_thread(held.release)


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


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_an_actor_that_waits_for_a_gpu_has_not_loaded_torch_and_has_once_it_holds_one(gpus, lease, redis_url, tmp_path):
    learner, taken = lease.claim("learner"), [lease.claim("actor") for _ in range(3)]
    port = free_port()
    words = {
        "actor.port": port,
        "redis.url": redis_url,
        "run.gpus": "lease",
        "model.path": write_model(tmp_path, 0),
        "actor.engine": "torch",
    }
    told = {f"HEADRACE_{name.upper().replace('.', '__')}": str(value) for name, value in words.items()}
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    with subprocess.Popen(
        [sys.executable, "-m", "services.actor"], env=environ | told, stderr=subprocess.PIPE, text=True
    ) as actor:
        try:
            said = iter(actor.stderr.readline, "")
            assert any("waiting for a GPU: 0 of 4 GPUs are free" in line for line in said)
            assert "libtorch" not in mapped(actor.pid)
            assert waited(port, "actor") > 0 and health(port)["waiting_for"].startswith("a GPU: 0 of 4 GPUs are free")
            taken[0].release()
            assert any(f"claimed {GPUS.split(',')[1]}" in line for line in said)
            deadline = time.monotonic() + 120
            while "libtorch" not in mapped(actor.pid):
                assert actor.poll() is None and time.monotonic() < deadline, actor.poll()
                time.sleep(0.1)
            assert waited(port, "actor") == 0 and health(port) == {"waiting_for": None}
        finally:
            actor.kill()
    assert learner.devices == ["GPU-a"]


@pytest.mark.slow
def test_a_learner_that_waits_for_a_gpu_has_not_loaded_torch_and_leaves_when_it_is_told(gpus, lease, redis_url):
    assert lease.claim("learner", "--run.name", "another", count=4)
    port = free_port()
    words = {
        "HEADRACE_LEARNER__PORT": str(port),
        "HEADRACE_REDIS__URL": redis_url,
        "HEADRACE_RUN__GPUS": "lease",
        "HEADRACE_MODEL__PATH": str(REPOSITORY / "examples" / "atlas" / "policy"),
    }
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-m", "services.learner"]
    with subprocess.Popen(command, env=environ | words, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as learner:
        try:
            said = iter(learner.stderr.readline, "")
            assert any("waiting for a GPU: 0 of 4 GPUs are free" in line for line in said)
            assert "python" in mapped(learner.pid) and "libtorch" not in mapped(learner.pid)
            assert waited(port, "learner") > 0 and health(port)["waiting_for"].startswith("a GPU: 0 of 4 GPUs are")
            learner.terminate()
            assert learner.wait(30) == 0
        finally:
            learner.kill()


def health(port: int) -> dict[str, str | None]:
    return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).json()


def waited(port: int, service: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    return float(re.findall(rf"^headrace_{service}_gpu_wait_seconds (\S+)$", text, re.MULTILINE)[0])


def mapped(pid: int) -> str:
    """Files that a process has in its memory, one a line."""
    return Path(f"/proc/{pid}/maps").read_text()
