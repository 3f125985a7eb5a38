"""Ways in which generation failed elsewhere, reported in public, without a test in another file."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.actor.engines.engine import CanaryRefused, EngineFailed, Finish, Sampling
from services.actor.engines.torch_engine import TorchEngine
from services.actor.engines.vllm_engine import VllmEngine
from services.actor.heartbeat import actor_name
from services.actor.observation import Document
from services.actor.rollout import Budget, Player, Rollout
from services.actor.scoring import score_rollouts
from services.actor.text import Codec
from shared.cancellation import stop
from shared.config import build
from shared.messages import CanarySequence, WeightsNotice
from shared.metrics import watch_loop_lag
from shared.rewards.own import Asked
from shared.seeds import derive
from shared.versions import Version
from tests import tiny_model
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
    scores = await score_rollouts([rollout], Asked(ground_truth=["b", "h", "and"]), build({}), time.monotonic() + 5)
    assert (scores[0].reward, scores[0].parts["answered"]) == (0.0, 0.0)


async def test_a_sampled_end_is_trained_where_it_is_the_padding_token_too(tmp_path: Path, make_config: Any):
    """Elsewhere a mask of what is not padding left the end of every answer out, and answers grew without end."""
    model = tiny_model.write_model(tmp_path / "model", seed=0)
    for name, key, value in (
        ("config.json", "pad_token_id", tiny_model.END),
        ("generation_config.json", "pad_token_id", tiny_model.END),
        ("tokenizer_config.json", "pad_token", "<|end|>"),
    ):
        (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | {key: value}))
    codec = Codec(model)
    assert codec.tokenizer.pad_token_id == codec.tokenizer.eos_token_id == tiny_model.END

    async def search(query: str, seed: int) -> list[Document]:
        return []

    engine = TorchEngine(make_config(model={"path": str(model)}))
    await engine.start()
    budget = Budget(max_tokens=300, max_turn_tokens=60, max_turns=3, max_observation_tokens=40)
    rollouts = [Rollout() for _ in range(8)]
    plays = [
        Player(engine, codec, budget, search).play(r, [3, 20, 2, 4], 1.0, lambda turn, i=i: derive(i, turn))
        for i, r in enumerate(rollouts)
    ]
    await asyncio.gather(*plays)
    await engine.close()
    ends = 0
    for r in rollouts:
        sampled = {place for start, stop in r.turns for place in range(start, stop)}
        assert [place in sampled for place in range(len(r.ids))] == r.mask
        assert len(r.logprobs) == len(sampled)
        ends += sum(r.ids[stop - 1] == tiny_model.END for _, stop in r.turns)
    assert ends > 3


class FaultyVllm:
    """vLLM's engine with files it cannot load, a cache it does not empty, or weights it does not get back."""

    def __init__(self, *, empties: bool = True, recovers: bool = True) -> None:
        self.empties, self.recovers, self.says = empties, recovers, -1.0

    async def pause_generation(self, **_: Any) -> None: ...
    async def resume_generation(self) -> None: ...
    async def update_weight_version(self, label: str) -> None: ...

    async def collective_rpc(self, what: str, kwargs: dict[str, str] | None = None) -> None:
        if kwargs and kwargs["weights_path"].endswith("damaged"):
            self.says = -2.0  # a part of it was loaded
            raise Exception("a worker says: shape mismatch")  # of no class of its own, as there
        if kwargs and self.recovers:
            self.says = -1.0

    async def reset_prefix_cache(self) -> bool:
        return self.empties


class OverFaultyVllm(VllmEngine):
    """The engine over such a one, at its first weights."""

    def __init__(self, model: Path, llm: FaultyVllm) -> None:
        super().__init__(build({"model": {"path": str(model)}}))
        self._llm, self._directory, self._dtype = llm, model, "float32"
        self._accepted = [CanarySequence(tokens=[0, 0], start=1, logprobs=[-1.0])]

    async def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        return [[self._llm.says]] * len(sequences)


NOTICE = WeightsNotice(version=Version(0, 1), location="v", digest="d", size=1, published=0.0, canary=[])


@pytest.mark.parametrize("directory", ["good", "damaged"])
async def test_a_prefix_cache_that_is_not_emptied_ends_the_actor(model_dir: Path, directory: str):
    """prime-rl and NeMo-RL went on with keys of the old weights; the mismatch grew until a restart."""
    engine = OverFaultyVllm(model_dir, FaultyVllm(empties=False))
    with pytest.raises(EngineFailed, match="prefix cache"):
        await engine.swap(NOTICE, Path(directory))


async def test_after_files_that_cannot_be_loaded_the_old_weights_are_proved_or_the_actor_ends(model_dir: Path):
    """What a worker was given before it failed may stay in it."""
    engine = OverFaultyVllm(model_dir, FaultyVllm())
    with pytest.raises(CanaryRefused, match="cannot load damaged: a worker says"):
        await engine.swap(NOTICE, Path("damaged"))
    await engine.swap(NOTICE, Path("good"))
    assert engine.version == NOTICE.version, "a refusal is no obstacle to the next one"
    engine = OverFaultyVllm(model_dir, FaultyVllm(recovers=False))
    with pytest.raises(EngineFailed, match=r"could not be put back: the canary.* off by 1 nats in the mean"):
        await engine.swap(NOTICE, Path("damaged"))


def test_no_two_lives_of_an_actor_share_a_name():
    """Elsewhere names were host names, and a dead worker's entries stayed pending for ever."""
    assert len({actor_name() for _ in range(1000)}) == 1000


async def test_a_blocked_event_loop_shows_in_a_metric():
    """prime-rl hung for 700 s with its loop blocked, and nothing said so."""
    registry = CollectorRegistry()
    watch = asyncio.create_task(watch_loop_lag("trap", registry, every_s=0.01))
    await asyncio.sleep(0.02)
    time.sleep(0.4)  # noqa: ASYNC251  what must not happen is what is looked for
    worst = 0.0
    for _ in range(10):
        await asyncio.sleep(0)
        worst = max(worst, registry.get_sample_value("headrace_trap_event_loop_lag_seconds") or 0)
    assert worst > 0.2
    await stop(watch)
