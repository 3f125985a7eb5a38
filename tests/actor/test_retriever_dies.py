"""A retriever that dies in the middle of rollouts: they are masked, never scored, and all goes on when it is back."""

import asyncio
import threading
from pathlib import Path

import pytest

from services.actor.engines.engine import Generation, Sampling
from services.actor.text import Codec
from shared.events import parse
from shared.messages import ENV_FAILED, FINISHED, Task
from shared.payload import decode_payload
from shared.seeds import derive
from tests.actor.running import KEYS, free_port, headers, make_task, send, start_search, wait_for
from tests.actor.scripted_engine import ScriptedEngine


class Gated(ScriptedEngine):
    """Says nothing while its gate is shut."""

    def __init__(self, say) -> None:
        super().__init__(say)
        self.gate = threading.Event()
        self.waiting = 0

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        self.waiting += 1
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        self.waiting -= 1
        return await super().generate(ids, sampling)


def searches_first(seed: int) -> bool:
    """Whether a rollout whose first turn has this seed begins with a search; the others answer at once."""
    return seed % 2 == 1


def searching(task: Task) -> list[bool]:
    """Which of a task's rollouts begin with a search."""
    return [searches_first(derive(task.seed, i, 0)) for i in range(task.group_size)]


def seed_where(wanted: list[bool]) -> int:
    """The seed of a task whose rollouts do this."""
    return next(s for s in range(10_000) if searching(make_task(0, seed=s, group_size=len(wanted))) == wanted)


@pytest.mark.slow
def test_rollouts_that_a_dying_retriever_cuts_off_are_masked_and_tried_again_when_it_is_back(
    client, make_config, redis_url: str, model_dir: Path, start_actor, tmp_path: Path
):
    codec, port = Codec(model_dir), free_port()
    search, answer = codec.encode("<search> a </search>"), codec.encode("<answer> a </answer>")
    prompt = codec.prompt(make_task(0).messages, "plain")
    engine = Gated(lambda ids, s: (search if ids == prompt and searches_first(s.seed) else answer, "stop"))
    config = make_config(redis={"url": redis_url}, env={"url": f"http://127.0.0.1:{port}", "retries": 1})
    retriever = start_search(tmp_path, port)
    try:
        engine.gate.set()
        start_actor(config, engine)
        send(client, make_task(0, seed=seed_where([True, False])))
        before = headers(client, 1)[0]
        assert before.usable and before.statuses == [FINISHED] * 4

        engine.gate.clear()
        mixed = make_task(1, seed=seed_where([True, False, False, True]))
        lost = make_task(2, group_size=2, seed=seed_where([True, True]))
        send(client, mixed, lost)
        wait_for("six rollouts to be under way", lambda: True if engine.waiting == 6 else None)
        retriever.kill()
        retriever.wait(10)
        engine.gate.set()
        _, cut, failed = headers(client, 3)
        assert cut.statuses == [ENV_FAILED, FINISHED, FINISHED, ENV_FAILED]
        assert cut.usable and [r is None for r in cut.rewards] == [True, False, False, True]
        stored = decode_payload(client.get(KEYS.payload("t1")), "test")
        assert [bool(stored.rollout(i)[1].any()) for i in range(4)] == [False, True, True, False]
        assert not failed.usable and "0 of 2 rollouts could be scored (2 env_failed)" in failed.failure
        assert not client.exists(KEYS.payload("t2"))

        send(client, make_task(3))  # is begun by nobody: not even the index is known now
        wait_for("the task to be handed back", lambda: True if handed_back(client) else None)
        assert client.xlen(KEYS.groups) == 3
        retriever = start_search(tmp_path, port)
        send(client, make_task(2, group_size=2, attempt=1, seed=lost.seed))
        again, waited = headers(client, 5)[3:]
        assert {again.id, waited.id} == {"t2", "t3"}
        assert all(h.usable and set(h.statuses) == {FINISHED} for h in (again, waited))
        assert again.fingerprints == before.fingerprints and before.fingerprints["index"]
    finally:
        retriever.kill()
        retriever.wait(10)


def handed_back(client) -> bool:
    """Whether an actor has said so."""
    said = "tasks were handed back, since the retriever did not say what it serves"
    return any(said in event.get("text", "") for _, event in parse(client.xrange(KEYS.events)))
