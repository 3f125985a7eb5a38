"""A learner and an actor that share no folder: three steps, the weights in bfloat16, through Redis, as differences."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from cli.run import local_redis
from cli.run.ports import free_port
from shared import weights
from shared.events import parse
from shared.streams import Keys
from shared.transports import chunks
from tests.e2e.tap import Tap
from tests.e2e.test_services_alone import NAME, logs, settings, start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 3


def test_an_actor_without_the_learners_folder_follows_every_version(tmp_path: Path) -> None:
    server = local_redis.prepare(tmp_path / NAME, 0)
    common = settings(
        tmp_path, server.url, {name: free_port() for name in ("replay", "env_search", "learner", "actor")}
    )
    common |= {
        "HEADRACE_RUN__STEPS": str(STEPS),
        "HEADRACE_EVAL__LIMIT": "4",
        "HEADRACE_WEIGHTS__TRANSPORT": "redis",
        "HEADRACE_WEIGHTS__DELTA": "true",
        "HEADRACE_WEIGHTS__DTYPE": "bfloat16",
    }
    elsewhere = tmp_path / "elsewhere"
    own = {"replay": {}, "learner": {}, "actor": {"HEADRACE_RUN__ROOT": str(elsewhere)}}
    processes = {"redis": subprocess.Popen(server.command, stdout=subprocess.DEVNULL)}
    try:
        tap = Tap(tmp_path / NAME)
        tap.wait_until_listening()
        for name, variables in own.items():
            processes[name] = start(name, common | variables, tmp_path)
        assert processes["learner"].wait(400) == 0, logs(tmp_path)
        with redis.Redis.from_url(server.url) as client:
            events = [record for _, record in parse(client.xrange(Keys(NAME).events))]
            names: Any = client.smembers(chunks.versions_key(Keys(NAME)))
            left = sorted(name.decode() for name in names)
        for name in own:
            processes[name].send_signal(signal.SIGTERM)
            processes[name].wait(20)
        processes["redis"].terminate()
        traffic = tap.close()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()

    kinds = [event["kind"] for event in events]
    assert kinds.count("step") == STEPS and "refused" not in kinds, logs(tmp_path)
    swaps = [event["version"] for event in events if event["kind"] == "swap"]
    assert swaps == sorted(swaps) and (swaps[0], swaps[-1]) == ("0.0", f"0.{STEPS}")
    published = weights.published(tmp_path / NAME / "weights")
    assert left == [version.directory for version in published[-2:]]
    for version in weights.published(received := elsewhere / NAME / "received"):
        weights.verify(received / version.directory, weights.digest_in(tmp_path / NAME / "weights" / version.directory))
    assert not (elsewhere / NAME / "weights").exists()
    assert traffic.payload_readers.isdisjoint(traffic.task_writers)
