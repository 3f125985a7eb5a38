"""vLLM's own process hangs under an actor: it is noticed and named, nothing of it is left, its tasks go to others."""

import time

import psutil
import pytest

from services.actor.tasks import RECLAIM_MS
from shared.events import parse
from shared.streams import ACTORS
from tests.actor.running import KEYS, announce, make_task, ready, send, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

DEADLINE_S = 20.0
START_S = 600.0
ROOM_S = 8.0  # for the reads of tasks and the parts of leaving, on a busy machine


def test_a_hung_engine_process_ends_its_actor_and_its_tasks_are_there_for_others_within_half_a_deadline(
    make_config, redis_url, client, publish, start_process
):
    config = make_config(
        redis={"url": redis_url},
        env={"kind": "single"},
        rollout={"deadline_s": DEADLINE_S, "group_size": 4},
        actor={"engine": "vllm"},
    )
    actor = start_process(config)
    announce(client, publish(0, seed=0))
    wait_for("the first weights", lambda: ready(client) or None, START_S)
    engine = max(psutil.Process(actor.pid).children(recursive=True), key=lambda p: p.memory_info().rss)
    engine.suspend()
    send(client, *(make_task(i) for i in range(3)))
    began = time.monotonic()
    assert actor.wait(DEADLINE_S / 2 + ROOM_S) == 1
    said = [record["text"] for _, record in parse(client.xrange(KEYS.events)) if record["kind"] == "warning"]
    assert any("vllm engine has sampled nothing for 10 s" in text for text in said), said
    claimed = client.xautoclaim(KEYS.tasks, ACTORS, "another", RECLAIM_MS)[1]
    assert len(claimed) == 3 and time.monotonic() - began < DEADLINE_S
    wait_for("the end of vLLM's process", lambda: not engine.is_running() or None, ROOM_S)
