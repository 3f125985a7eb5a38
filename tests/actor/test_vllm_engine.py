"""One real vLLM engine on this machine for the whole module; a model with TIED embeddings."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch

from services.actor.engines.engine import CanaryRefused, Sampling
from services.actor.engines.vllm_engine import VllmEngine
from services.actor.heartbeat import resident_bytes
from services.actor.transports.redis_chunks import RedisReceiver
from services.actor.wire import Wire
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights.model_writer import as_written, write_plain
from services.learner.weights.transports.redis_chunks import RedisSender
from shared import weights
from shared.config import build
from shared.messages import WeightsNotice
from shared.redis_client import connect
from shared.versions import Version
from tests import tiny_model
from tests.actor.conftest import canary_of
from tests.actor.running import eight_under_way

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
STOP = ("</search>", "</answer>")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_dir):
    tree = {
        "model": {"path": str(model_dir)},
        "env": {"prompt": "plain"},
        "rollout": {"max_tokens": 400, "max_prompt_tokens": 60, "max_turn_tokens": 100, "group_size": 8},
        "actor": {"engine": "vllm", "groups": 4, "threads": 1},
    }
    engine = VllmEngine(build(tree))
    await engine.start()
    yield engine
    await engine.close()


def gap(directory: Path, prompt: list[int], generation, full_logprobs, temperature: float = 1.0) -> np.ndarray:
    truth = full_logprobs(directory, [*prompt, *generation.ids], len(prompt), temperature)
    return np.array(generation.logprobs) - truth


async def test_sampled_tokens_have_the_log_probabilities_of_transformers(engine, model_dir, full_logprobs):
    async def one(i: int):
        prompt = [3, *range(14, 15 + i % 11), 2, 4]
        sampling = Sampling((1.0, 0.7)[i % 2], 40, 100 + i, STOP if i % 3 else ())
        return prompt, sampling, await engine.generate(prompt, sampling)

    got = await asyncio.gather(*(one(i) for i in range(32)))
    errors = [gap(model_dir, p, g, full_logprobs, s.temperature) for p, s, g in got]
    flat = np.concatenate(errors)
    assert len(flat) > 200
    assert (flat**2).mean() < 1e-9
    finishes = {g.finish for _, _, g in got}
    assert finishes == {"stop", "eos", "length"}
    for _, _, g in got:
        if g.finish == "eos":
            assert g.ids[-1] in (2, 5)
    assert {g.ids[-1] for _, _, g in got if g.finish == "eos"} == {2, 5}  # both ends of the generation config


async def test_sampling_parameters_in_the_models_own_files_are_ignored(engine, model_dir, full_logprobs):
    its_own = json.loads((model_dir / "generation_config.json").read_text())
    assert (its_own["top_k"], its_own["temperature"], its_own["repetition_penalty"]) == (1, 0.1, 5.0)
    prompt = [3, 20, 2, 4]
    got = await asyncio.gather(*(engine.generate(prompt, Sampling(1.0, 30, i)) for i in range(16)))
    assert len({g.ids[0] for g in got}) > 4  # top-k 1 has one
    for g in got:
        assert np.abs(gap(model_dir, prompt, g, full_logprobs)).max() < 1e-4


async def test_the_same_seed_gives_the_same_tokens_and_another_others(engine):
    a, b, c = [await engine.generate([3, 20, 2, 4], Sampling(1.0, 30, seed)) for seed in (1, 1, 2)]
    assert a.ids == b.ids
    assert a.ids != c.ids


async def test_a_stop_string_that_ends_inside_a_token_ends_the_turn_with_that_token(engine, model_dir, full_logprobs):
    stops, decode = ("</sea", "> </ans", "itl"), engine._codec.decode
    prompt = [3, 20, 2, 4]
    got = await asyncio.gather(*(engine.generate(prompt, Sampling(1.0, 90, 300 + i, stops)) for i in range(64)))
    stopped = [g for g in got if g.finish == "stop"]
    assert len(stopped) > 3
    for g in got:
        assert not any(s in decode(g.ids[:-1]) for s in stops), "nothing comes behind it"
        assert any(s in decode(g.ids) for s in stops) == (g.finish == "stop")
        assert len(g.logprobs) == len(g.ids) == sum(count for count, _ in g.version_runs)
        assert np.abs(gap(model_dir, prompt, g, full_logprobs)).max() < 1e-4
    assert {decode(g.ids[-1:]) for g in stopped} <= {"</search>", "</answer>", "Title"}, "whole tokens"


async def test_prompts_that_do_not_fit_one_forward_together_wait_their_turn(engine):
    prompts = [[3, *(14 + (i + at) % 26 for at in range(300)), 4] for i in range(24)]
    assert sum(map(len, prompts)) > 3 * 2048  # tokens of one forward on a CPU
    got = await asyncio.gather(*(engine.generate(p, Sampling(1.0, 5, i)) for i, p in enumerate(prompts)))
    assert all(1 <= len(g.ids) <= 5 for g in got)


async def test_a_score_is_the_full_forward(engine, model_dir, full_logprobs):
    tokens = [3, *range(14, 50), 4]
    [scored] = await engine.score([tokens], [5])
    assert np.abs(np.array(scored) - full_logprobs(model_dir, tokens, 5)).max() < 1e-5


async def test_a_swap_during_eight_requests_loses_none_and_labels_every_token_rightly(
    engine, model_dir, publish, full_logprobs
):
    await engine.swap(*publish(0, seed=0))
    notice, directory = publish(1, seed=1)
    prompts, running = await eight_under_way(engine)
    stall = await engine.swap(notice, directory)
    got = await asyncio.gather(*running)
    assert stall < 5
    assert engine.version == Version(0, 1)
    where = {Version(0, 0): model_dir, Version(0, 1): directory}
    both = 0
    for prompt, g in zip(prompts, got, strict=True):
        claimed = [v for n, v in g.version_runs for _ in range(n)]
        assert len(claimed) == len(g.ids) == len(g.logprobs)
        both += len(set(claimed)) == 2
        for version in set(claimed):
            error = gap(where[version], prompt, g, full_logprobs)
            assert np.abs(error[[c == version for c in claimed]]).max() < 1e-4
    assert both > 0
    after = await engine.generate([3, 20, 2, 4], Sampling(1.0, 60, 9))
    assert np.abs(gap(directory, [3, 20, 2, 4], after, full_logprobs)).max() < 1e-4


async def test_swaps_under_load_leave_no_memory_behind(engine, publish):
    two = [publish(10 + seed, seed=seed) for seed in (1, 2)]
    used: list[int] = []
    for swap in range(40):
        running = [asyncio.ensure_future(engine.generate([3, 20 + i, 2, 4], Sampling(1.0, 60, i))) for i in range(8)]
        await engine.swap(*two[swap % 2])
        await asyncio.gather(*running)
        used.append(resident_bytes())
    assert used[-1] - used[9] < 32 * 2**20, "measured: 3 MiB; by then the kernels of these shapes are compiled"


async def test_a_wrong_file_is_refused_and_running_requests_go_on_under_the_old_weights(engine, publish, full_logprobs):
    good, old = publish(2, seed=1)
    await engine.swap(good, old)
    before = await engine.generate([3, 20, 2, 4], Sampling(1.0, 60, 9))
    prompts = [[3, 20 + i, 2, 4] for i in range(8)]
    running = [
        asyncio.ensure_future(engine.generate(p, Sampling(1.0, 380, i, STOP if i % 2 else ())))
        for i, p in enumerate(prompts)
    ]
    await asyncio.sleep(0.05)
    with pytest.raises(CanaryRefused, match="nats"):
        await engine.swap(*publish(3, seed=5, canary_seed=6))
    assert engine.version == Version(0, 2)
    for prompt, g in zip(prompts, await asyncio.gather(*running), strict=True):
        assert {v for _, v in g.version_runs} == {Version(0, 2)}
        assert np.abs(gap(old, prompt, g, full_logprobs)).max() < 1e-4
    after = await engine.generate([3, 20, 2, 4], Sampling(1.0, 60, 9))
    assert after.ids == before.ids
    assert np.abs(np.array(after.logprobs) - before.logprobs).max() < 1e-6


async def test_files_of_another_shape_are_refused_and_the_old_weights_go_on(engine, publish, tmp_path):
    before = await engine.generate([3, 20, 2, 4], Sampling(1.0, 30, 9))
    with pytest.raises(CanaryRefused):
        await engine.swap(*publish(4, seed=5, tied=False))
    after = await engine.generate([3, 20, 2, 4], Sampling(1.0, 30, 9))
    assert after.ids == before.ids


async def test_cancelled_requests_leave_the_engine(engine):
    running = [asyncio.ensure_future(engine.generate([3, 20, 2, 4], Sampling(1.0, 390, i))) for i in range(4)]
    await asyncio.sleep(0.03)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert engine._llm.output_processor.get_num_unfinished_requests() == 0


async def test_bfloat16_files_that_came_through_redis_are_swapped_in_and_damaged_ones_are_not(
    engine, redis_url, tmp_path, full_logprobs
):
    config = build({"run": {"name": "sent", "root": str(tmp_path)}, "redis": {"url": redis_url}})
    model, version = tiny_model.build_model(7), Version(0, 9)
    folder, digest, size = weights.publish(config.weights_dir, version, lambda d: write_plain(model, d, torch.bfloat16))
    with as_written(model, torch.bfloat16):
        canary = [canary_of(model, [3, *range(14, 34), 4], start=2)]
    notice = WeightsNotice(
        version=version, location=folder.name, digest=digest, size=size, published=0.0, canary=canary
    )
    wire = Wire(config)
    with connect(redis_url) as client:
        RedisSender(Outbox(client, wire.keys, Stop()), Stop(), delta=False).send(notice, folder)
    received, _ = await RedisReceiver(wire, tmp_path / "received").fetch(notice, engine.version)
    await wire.client.aclose()
    await engine.verify(notice, received)
    await engine.swap(notice, received)
    assert engine.version == version
    generation = await engine.generate([3, 20, 2, 4], Sampling(1.0, 60, 9))
    assert np.abs(gap(folder, [3, 20, 2, 4], generation, full_logprobs)).max() < 1e-4
    (received / "config.json").write_text("{}")
    with pytest.raises(CanaryRefused, match="damaged or replaced"):
        await engine.verify(notice, received)
