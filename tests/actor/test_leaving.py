"""`python -m services.actor` leaves within ten seconds, whatever it waits for."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from shared.config import Config
from shared.redis_client import connect
from tests.actor.running import announce, free_port, heartbeats, make_task, send, start_search
from tests.actor.test_service import make_config_endless
from tests.leaving import REDIS_STATES, assert_leaves, own_redis, redis_wait, until

pytestmark = pytest.mark.slow

Start = Callable[[Config], subprocess.Popen]


def under_way(client: redis.Redis) -> bool:
    """Whether it works on a task."""
    return any(beat["groups_running"] for beat in heartbeats(client))


def test_for_its_first_weights(client, make_config: Callable[..., Config], redis_url: str, start_process: Start):
    actor = start_process(make_config(redis={"url": redis_url}, env={"kind": "single"}))
    send(client, make_task(0))
    until(lambda: any(beat["state"] == "running" for beat in heartbeats(client)), "actor that runs")
    assert_leaves(actor)
    assert not heartbeats(client)


@pytest.mark.parametrize("state", ["stopped", "killed"])
def test_for_its_retriever(
    client,
    make_config: Callable[..., Config],
    redis_url: str,
    start_process: Start,
    publish,
    tmp_path: Path,
    state: str,
):
    port = free_port()
    search = start_search(tmp_path, port)
    try:
        search.send_signal(signal.SIGSTOP if state == "stopped" else signal.SIGKILL)
        announce(client, publish(0, seed=0))
        send(client, make_task(0))
        env = {"url": f"http://127.0.0.1:{port}", "timeout_s": 30.0, "retries": 100}
        actor = start_process(make_config(redis={"url": redis_url}, env=env))
        until(lambda: under_way(client), "task that waits for the retriever")
        assert_leaves(actor)
        assert not heartbeats(client)
    finally:
        search.kill()
        search.wait()


@pytest.mark.parametrize("state", REDIS_STATES)
def test_for_redis_in_the_middle_of_a_generation(
    make_config: Callable[..., Config], start_process: Start, publish, tmp_path: Path, state: str
):
    port = free_port()
    with own_redis(tmp_path) as server, connect(server.url) as client:
        announce(client, publish(0, seed=0))
        for number in range(100):  # a fast machine ends one between two heartbeats
            send(client, make_task(number, group_size=128))
        actor = start_process(make_config_endless(make_config(redis={"url": server.url}, actor={"port": port})))
        until(lambda: under_way(client), "generation")
        server.hurt(state, redis_wait("actor", port))
        assert_leaves(actor)
