"""Waiting for Redis: what passes is waited for and told once; a server that refuses its user ends every wait."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from cli.run.ports import free_port
from cli.run.redis_binary import find_redis_binary
from services.actor.run_over import raise_if_over
from services.actor.wire import Wire
from services.learner.stop import Stop
from services.learner.talk.patience import patiently
from services.replay.service import Replay
from shared.config import Config, build
from shared.errors import UserError
from shared.gpu_lease import GpuLease
from shared.gpus import Gpu
from shared.metrics import RedisWait
from shared.outage import WHAT_TO_DO, Outage
from shared.redis_client import connect
from tests.replay.peers import Questions, client_of


class Server:
    """A Redis of this test's own, which can be started again with another password."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder
        self.url = f"redis://:first@127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, password: str) -> None:
        self.stop()
        options = ["--port", self.port, "--save", "", "--dir", self._folder, "--requirepass", password]
        command = [find_redis_binary().path, "--bind", "127.0.0.1", *map(str, options)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with redis.Redis(port=self.port, password=password) as client:
            for _ in range(200):
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.02)
        raise AssertionError("Redis did not start")

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.start("first")
    yield made
    made.stop()


def config_of(url: str) -> Config:
    return build({"run": {"name": "outage", "gpus": "lease"}, "redis": {"url": url}})


REFUSED = "^Redis refuses the password: put the right one into redis.url"


def test_a_learner_gives_up_when_redis_comes_back_with_another_password(server: Server) -> None:
    with connect(server.url) as client:
        assert patiently(Stop(), "look", client.ping)
        server.start("second")
        with pytest.raises(UserError, match=REFUSED):
            patiently(Stop(), "look", client.ping)


async def test_an_actor_gives_up_when_redis_comes_back_with_another_password(server: Server) -> None:
    wire = Wire(config_of(server.url))
    assert await wire.call(wire.client.ping)
    server.start("second")
    for _ in range(2):  # the first may find its connection closed, which is waited for
        with pytest.raises(UserError, match=REFUSED):
            await wire.call(wire.client.ping)
    with pytest.raises(UserError, match=REFUSED):
        await raise_if_over(config_of(server.url), wire.client)
    await wire.client.aclose()


@pytest.mark.slow
async def test_replay_gives_up_when_redis_comes_back_with_another_password(server: Server) -> None:
    replay = Replay(config_of(server.url), client_of(server.url), Questions(9), None, CollectorRegistry())
    serving = asyncio.create_task(replay.run())
    async with asyncio.timeout(20):
        while replay.state is None:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.start, "second")
        with pytest.raises(UserError, match=REFUSED):
            await serving


def test_who_waits_for_a_gpu_gives_up_where_the_password_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start("second")
    monkeypatch.setattr("shared.gpu_lease.visible_gpus", lambda: [Gpu("GPU-1")])
    lease = GpuLease(config_of(server.url), "learner", 1)
    with pytest.raises(UserError, match=REFUSED):
        lease.try_claim()


def test_a_user_that_may_not_do_what_a_run_does_is_told_so(server: Server) -> None:
    with connect(server.url) as owner, connect(server.url.replace(":first", "reader:x")) as client:
        owner.execute_command("ACL", "SETUSER", "reader", "on", ">x", "~*", "+@read", "+ping", "+eval")
        for call in (lambda: client.set("a", 1), lambda: client.eval("return redis.call('set', 'a', 1)", 0)):
            with pytest.raises(UserError, match=r"Redis forbids the user of redis.url what a run does \("):
                patiently(Stop(), "write", call)


def test_other_errors_are_raised_as_they_are(server: Server) -> None:
    with connect(server.url) as client, pytest.raises(redis.ResponseError, match="unknown command"):
        patiently(Stop(), "look", lambda: client.execute_command("NONSENSE"))
    with pytest.raises(ZeroDivisionError):
        patiently(Stop(), "count", lambda: 1 // 0)


def test_an_outage_is_one_however_many_calls_share_it(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    outage = Outage(RedisWait("test", registry))

    def waited(why: str) -> Any:
        return registry.get_sample_value("headrace_test_redis_wait_seconds", {"why": why})

    full = redis.OutOfMemoryError("OOM command not allowed")
    assert outage.failed(full, "store a group") == f"{WHAT_TO_DO['memory']}."
    assert outage.failed(full, "store a group") is None, "not again so soon"
    assert waited("memory") > 0 == waited("away")
    assert outage.failed(redis.ConnectionError("gone")) is None
    assert waited("away") > 0 == waited("memory")
    outage.over()
    outage.over()
    assert outage.seconds == waited("away") == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("waiting for Redis to store a group since 0 s: Redis is full")
    assert said[1].startswith("Redis is back after 0.0 s")
