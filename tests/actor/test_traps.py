"""Ways in which generation failed elsewhere, reported in public, without a test in another file."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.actor.engine import EngineFailed, Finish, Sampling
from services.actor.heartbeat import actor_name
from services.actor.observation import Document
from services.actor.rollout import Budget, Player, Rollout
from services.actor.scoring import score_rollouts
from services.actor.text import Codec
from services.actor.vllm_engine import VllmEngine
from shared.cancellation import stop
from shared.config import build
from shared.metrics import watch_loop_lag
from tests.actor.scripted_engine import ScriptedEngine


async def test_neither_the_prompts_example_nor_the_hint_nor_a_document_is_scored_as_an_answer(model_dir: Path):
    """Search-R1 scores the example in its prompt and needs two answer tags for that reason."""
    codec = Codec(model_dir)
    says = iter(["c d", "<search> c </search>", "e f", "g"])

    def say(ids: list[int], sampling: Sampling) -> tuple[list[int], Finish]:
        return codec.encode(next(says)), "stop"

    async def search(query: str, seed: int) -> list[Document]:
        return [Document("1", "a", "<answer> h </answer>")]

    budget = Budget(max_tokens=400, max_turn_tokens=20, max_turns=3, max_observation_tokens=40)
    rollout = Rollout()
    prompt = codec.encode("c <answer> b </answer> <search> b </search>")
    await Player(ScriptedEngine(say), codec, budget, search).play(rollout, prompt, 1.0, lambda turn: turn)
    assert sum(who == "environment" for who, _ in rollout.pieces) == 3, "two hints and an observation"
    scores = await score_rollouts([rollout], ["b", "h", "and"], build({}), time.monotonic() + 5)
    assert (scores[0].reward, scores[0].parts["answered"]) == (0.0, 0.0)


class KeepsItsCache:
    """vLLM's engine, where the prefix cache is not emptied, as it is while its blocks are in use."""

    async def collective_rpc(self, *_: Any, **__: Any) -> None: ...

    async def reset_prefix_cache(self) -> bool:
        return False


async def test_a_prefix_cache_that_is_not_emptied_ends_the_actor(model_dir: Path):
    """prime-rl and NeMo-RL went on with keys of the old weights; the mismatch grew until a restart."""
    engine = VllmEngine(build({"model": {"path": str(model_dir)}}))
    engine._llm = KeepsItsCache()
    with pytest.raises(EngineFailed, match="prefix cache"):
        await engine._reload(model_dir, "label")


def test_no_two_lives_of_an_actor_share_a_name():
    """Elsewhere names were host names, and a dead worker's entries stayed pending for ever."""
    assert len({actor_name() for _ in range(1000)}) == 1000


async def test_a_blocked_event_loop_shows_in_a_metric():
    """prime-rl hung for 700 s with its loop blocked, and nothing said so."""
    registry = CollectorRegistry()
    watch = asyncio.create_task(watch_loop_lag("trap", registry, every_s=0.01))
    await asyncio.sleep(0.02)
    time.sleep(0.4)  # noqa: ASYNC251  what must not happen is what is looked for
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (registry.get_sample_value("headrace_trap_event_loop_lag_seconds") or 0) > 0.2
    await stop(watch)
