"""`python -m services.learner` leaves within ten seconds, whatever it waits for."""

import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from cli.run.ports import free_port
from shared.messages import Batch, Hello
from tests.learner.test_process import Process, config_of, processes, store
from tests.leaving import assert_leaves, metric, own_redis, redis_wait, until
from tests.redis_proxy import proxied

pytestmark = pytest.mark.slow
__all__ = ["processes"]  # a fixture

SMALL_FILE_BYTES = 2**15  # its log, and no weights


@pytest.mark.parametrize("state", ["stopped", "full"])
def test_for_redis(tmp_path: Path, policy_dir: Path, processes: list[Process], state: str) -> None:
    port = free_port()
    with own_redis(tmp_path) as server:
        if state == "full":
            server.fill()  # before its first word
        learner = Process(tmp_path, config_of(tmp_path, policy_dir, server.url, port=port))
        processes.append(learner)
        if state == "stopped":
            learner.next(Hello)  # and it waits for work
        server.hurt(state, redis_wait("learner", port))
        assert_leaves(learner.popen)


def test_for_room_on_its_disk(
    tmp_path: Path, policy_dir: Path, redis_url: str, make_payload: Any, processes: list[Process]
) -> None:
    port = free_port()
    learner = Process(tmp_path, config_of(tmp_path, policy_dir, redis_url, port=port))
    processes.append(learner)
    learner.next(Hello)
    resource.prlimit(learner.popen.pid, resource.RLIMIT_FSIZE, (SMALL_FILE_BYTES, resource.RLIM_INFINITY))
    store(learner.client, make_payload, "a", "b")
    learner.send(Batch(step=0, replay=[], fresh=["a", "b"]))
    until(lambda: metric(port, "headrace_learner_disk_wait_seconds") > 0, "waiting for room")
    assert_leaves(learner.popen)


def test_for_a_redis_that_falls_silent_before_it_begins(
    tmp_path: Path, policy_dir: Path, redis_url: str, processes: list[Process]
) -> None:
    silent = threading.Event()
    with proxied(redis_url, silent_at=b"CLIENT", silent=silent) as url:
        learner = Process(tmp_path, config_of(tmp_path, policy_dir, url))
        processes.append(learner)
        assert silent.wait(60)
        assert_leaves(learner.popen)
