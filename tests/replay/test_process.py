"""The replay service as a process of its own, from HEADRACE_* variables alone."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from cli.run.ports import free_port
from tests.leaving import REDIS_STATES, assert_leaves, own_redis, redis_wait
from tests.redis_proxy import proxied

ATLAS = Path(__file__).resolve().parents[2] / "examples" / "atlas" / "data"


@pytest.fixture
def start(redis_url, tmp_path):
    """Starts `python -m services.replay` with these settings; everything is gone afterwards."""
    running: list[subprocess.Popen] = []

    def run(**settings: str | int) -> subprocess.Popen:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        given = {
            "RUN__NAME": "alone",
            "RUN__ROOT": str(tmp_path),
            "DATA__TRAIN": str(ATLAS / "train.jsonl"),
            "REDIS__URL": redis_url,
            "REPLAY__PORT": str(free_port()),
            "LEARNER__BATCH": "4",
        } | {k: str(v) for k, v in settings.items()}
        env = inherited | {f"HEADRACE_{k}": v for k, v in given.items()}
        command = [sys.executable, "-m", "services.replay"]
        running.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


def wait_ready(port: int) -> dict:
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/health")
            if answer.status_code == 200:
                return answer.json()
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "replay did not come up"
        time.sleep(0.1)


def said(process: subprocess.Popen, code: int) -> str:
    """What it printed on ending with `code`: one line, no trace."""
    _, text = process.communicate(timeout=60)
    lines = [line for line in text.splitlines() if line and " WARNING " not in line]
    assert process.returncode == code and "Traceback" not in text, text
    assert len(lines) == 1, text
    return lines[0]


def test_it_comes_up_from_variables_alone_and_leaves_at_once_on_a_signal(start):
    port = free_port()
    process = start(REPLAY__PORT=port)
    health = wait_ready(port)
    assert health["run"] == "alone" and health["waiting_for"] in ("Redis", "the learner to come up")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 0 and time.monotonic() - began < 5


@pytest.mark.slow
def test_a_signal_is_heeded_while_redis_is_away(start):
    process = start(REDIS__URL=f"redis://127.0.0.1:{free_port()}/0", REDIS__WAIT_S=60)
    time.sleep(3)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_each_mistake_is_one_sentence_and_status_2(start, tmp_path):
    assert "did not answer within 0.5 s" in said(start(REDIS__URL="redis://127.0.0.1:1/0", REDIS__WAIT_S=0.5), 2)
    assert "nowhere.jsonl" in said(start(DATA__TRAIN="nowhere.jsonl"), 2)
    assert "did you mean 'naive'?" in said(start(REPLAY__POLICY="nave", REDIS__URL="redis://127.0.0.1:1/0"), 2)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": "a", "answer": "b"}\n{"question": "c"}\n')
    assert "redis.url" in said(start(REDIS__URL="localhost:6379"), 2)
    port = free_port()
    start(REPLAY__PORT=port)
    wait_ready(port)
    assert f"127.0.0.1:{port} cannot be opened" in said(start(REPLAY__PORT=port), 2)


@pytest.mark.slow
def test_a_second_one_is_refused_a_killed_one_replaced_and_one_that_hung_says_who_has_its_place(start):
    ports = [free_port() for _ in range(3)]
    killed = start(REPLAY__PORT=ports[0])
    wait_ready(ports[0])
    assert f"replay: another replay of run 'alone' is at work ({socket.gethostname()}-{killed.pid})" in said(start(), 2)
    assert killed.poll() is None
    killed.kill()
    hung = start(REPLAY__PORT=ports[1])
    wait_ready(ports[1])
    hung.send_signal(signal.SIGSTOP)
    third = start(REPLAY__PORT=ports[2])
    wait_ready(ports[2])
    hung.send_signal(signal.SIGCONT)
    assert "another replay process has taken over" in said(hung, 2)
    assert third.poll() is None


@pytest.mark.slow
def test_a_password_that_changes_meanwhile_ends_it_with_one_sentence(start, change_password):
    port = free_port()
    process = start(REPLAY__PORT=port)
    wait_ready(port)
    change_password()
    assert said(process, 2) == "replay: Redis refuses the password: put the right one into redis.url."


@pytest.mark.slow
@pytest.mark.parametrize("state", REDIS_STATES)
def test_it_leaves_in_time_whatever_redis_does(start, tmp_path, state):
    port = free_port()
    with own_redis(tmp_path) as server:
        if state == "full":
            server.fill()  # before its first word
        process = start(REDIS__URL=server.url, REPLAY__PORT=port)
        if state != "full":
            wait_ready(port)
        server.hurt(state, redis_wait("replay", port))
        assert_leaves(process)


@pytest.mark.slow
def test_it_leaves_in_time_when_redis_falls_silent_while_it_starts(start, redis_url):
    silent = threading.Event()
    with proxied(redis_url, silent_at=b"SCAN", silent=silent) as url:
        process = start(REDIS__URL=url)
        assert silent.wait(60)
        assert_leaves(process)
