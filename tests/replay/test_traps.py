"""Ways in which replay and its streams failed elsewhere, reported in public, without a test in another file."""

import ast
import random
import re
import time
from pathlib import Path

import pytest
import redis

from services.replay import transitions
from services.replay.policies import get_policy
from services.replay.records import Counters
from services.replay.state import State, Transaction
from services.replay.tasks import again_task, eval_task, train_task
from shared.config import build
from shared.messages import AGAIN, EVAL, TRAIN, Task
from shared.redis_client import BLOCK_MS, SOCKET_TIMEOUT_S
from shared.streams import Inbox, Keys
from shared.versions import Version
from tests.replay.peers import Questions, client_of, header_for

ROOT = Path(__file__).resolve().parents[2]


def test_two_tasks_with_one_prompt_are_two_groups():
    """NeMo-RL keyed groups by the text of their prompt and merged them."""
    config = build({"rollout": {"group_size": 3}})
    state, pipe = State(Counters(started=0.0)), redis.Redis().pipeline()  # connects to nothing
    state.counters.version = Version(0, 0)
    tx = Transaction(state, Keys("one"), pipe)
    tasks = [train_task(config, Questions(1), number, attempt=0, min_version=0) for number in range(4)]
    assert all(task.messages == tasks[0].messages for task in tasks)
    assert len({task.id for task in tasks}) == len({task.seed for task in tasks}) == 4
    for task in tasks:
        tx.put("tasks", task.id, task)
    for task in tasks:
        header = header_for(task, random.Random(task.number), Version(0, 0))
        transitions.group_arrived(config, state, tx, get_policy("headroom_drift"), header)
    assert len(state.fresh) == 4 and not state.tasks
    pipe.reset()


@pytest.mark.parametrize("kind", [TRAIN, EVAL, AGAIN])
def test_another_attempt_at_a_task_has_another_seed(kind: str):
    """With its own it would sample what failed once more, and fail again in the same way."""
    config = build({"replay": {"max_attempts": 3}})
    state, pipe = State(Counters(started=0.0, version=Version(0, 0))), redis.Redis().pipeline()  # connects to nothing
    tx, questions, policy = Transaction(state, Keys("again"), pipe), Questions(9), get_policy("none")
    make = {
        TRAIN: lambda number: train_task(config, questions, number, attempt=0, min_version=0),
        EVAL: lambda number: eval_task(config, questions, 0, number, attempt=0),
        AGAIN: lambda number: again_task(config, questions, number, 0, group_size=8),
    }[kind]
    seeds = []
    for number in range(3):
        task = make(number)
        tx.put("tasks", task.id, task)
        for attempt in range(3):
            task = state.tasks[task.id]
            assert task.attempt == attempt
            seeds.append(task.seed)
            if attempt < 2:
                header = header_for(task, random.Random(0), Version(0, 0), failed=True)
                transitions.group_arrived(config, state, tx, policy, header)
    assert len(set(seeds)) == 9
    pipe.reset()


def test_a_slow_answer_to_an_attempt_that_was_replaced_is_not_trained_beyond_max_lag():
    """Two actors with one task: the one that took it over fails, and the one that was stopped stores its old group."""
    config = build({"learner": {"batch": 1}, "replay": {"policy": "none", "max_lag": 1}})
    state, pipe = State(Counters(started=0.0, version=Version(0, 0))), redis.Redis().pipeline()  # connects to nothing
    tx, policy = Transaction(state, Keys("slow"), pipe), get_policy("none")

    def arrives(task: Task, version: int, *, failed: bool = False) -> None:
        header = header_for(task, random.Random(0), Version(0, version), failed)
        transitions.group_arrived(config, state, tx, policy, header)

    def train() -> None:
        [id] = transitions.fresh_for_step(config, state) or []
        assert state.counters.step - tx.drop("fresh", id).header.version_min.number <= 1
        state.counters.step += 1
        transitions.issue_tasks(config, state, tx, policy, Questions(9))

    transitions.issue_tasks(config, state, tx, policy, Questions(9))
    first, slow = state.tasks.values()
    arrives(first, 0)
    train()
    arrives(slow, 0, failed=True)
    again = state.tasks[slow.id]
    assert (again.attempt, again.min_version) == (1, 1)
    arrives(state.tasks["t00000002"], 1)
    train()
    arrives(slow, 0)
    assert state.tasks[slow.id] == again and not state.fresh, "it is still awaited from who has the last attempt"
    arrives(again, 1)
    train()
    pipe.reset()


@pytest.mark.slow
async def test_a_stream_that_is_quiet_for_longer_than_the_librarys_time_limit_is_no_error(redis_url: str):
    """redis-py 8 gives up on a blocked read after 5 s unless it is told otherwise."""
    client = client_of(redis_url)
    assert client.connection_pool.connection_kwargs["socket_timeout"] == SOCKET_TIMEOUT_S > 5 * BLOCK_MS / 1000
    inbox = Inbox(client, "quiet", "readers", "reader")
    await inbox.create()
    begun = time.monotonic()
    assert await inbox.read(1, block_ms=5_300) == []
    assert time.monotonic() - begun > 5


def test_no_stream_that_is_acknowledged_is_ever_trimmed():
    """Trimmed entries stay pending, and XAUTOCLAIM returns them as deleted."""
    bounded = []
    for file in [f for part in ("services", "shared", "cli") for f in sorted((ROOT / part).rglob("*.py"))]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called, words = getattr(node.func, "attr", getattr(node.func, "id", "")), {w.arg for w in node.keywords}
                assert called != "xtrim", ast.unparse(node)
                ours = called != "deque" and words & {"maxlen", "minid"}
                if ours or ("keep" in words and "stream" in ast.unparse(node)):
                    bounded.append(ast.unparse(node))
    assert bounded, "this looks at something"
    for call in bounded:
        assert any(word in call for word in (".weights", ".events", "keys.dead", "pipe.xadd(stream")), call


@pytest.mark.parametrize("service", ["learner", "actor"])
def test_who_runs_torch_has_shared_memory_in_its_container(service: str):
    """A container has 64 MB of /dev/shm, and NCCL and vLLM die of it."""
    section = re.search(rf"\n  {service}:\n((?:    .*\n)+)", (ROOT / "compose.yaml").read_text())
    assert section and re.search(r"\n    shm_size: .*gb", section[1])
