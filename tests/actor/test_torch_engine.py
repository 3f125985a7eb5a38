"""The batched, cached torch engine against loops of a dozen lines."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.actor.engines.engine import CanaryRefused, Generation, Sampling
from services.actor.engines.torch_engine import TorchEngine
from services.actor.text import Codec
from shared.versions import Version

ENDS = (2, 5)


@torch.no_grad()
def plain_loop(directory: Path, ids: list[int], s: Sampling) -> tuple[list[int], list[float]]:
    """Sample by full forwards, one row, no cache; the same uniforms."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    codec, uniform, out, logprobs = Codec(directory), np.random.default_rng(s.seed), [], []
    while len(out) < s.max_tokens:
        logits = model(torch.tensor([ids + out])).logits[0, -1].double()
        logp = (logits / (s.temperature or 1.0)).log_softmax(-1)
        if s.temperature:
            cdf = logp.exp().cumsum(-1)
            token = int((cdf <= uniform.random() * cdf[-1]).sum())
        else:
            token = int(logits.argmax())
        out.append(token)
        logprobs.append(logp[token].item())
        if token in ENDS or any(stop in codec.decode(out) for stop in s.stop):
            break
    return out, logprobs


@pytest.fixture
async def engine(make_config):
    engine = TorchEngine(make_config())
    await engine.start()
    yield engine
    await engine.close()


def requests(n: int) -> list[tuple[list[int], Sampling]]:
    """Prompts of many lengths (some alike), temperatures, budgets."""
    rng = np.random.default_rng(7)
    out = []
    for i in range(n):
        prompt = [3, *rng.integers(14, 40, 1 + (i // 2) % 9).tolist(), 2, 4] if i % 3 else [3, 20, 21, 2, 4]
        sampling = Sampling((1.0, 0.7, 0.0)[i % 3], 4 + i, 100 + i, ("</search>", "</answer>") if i % 2 else ())
        out.append((prompt, sampling))
    return out


@pytest.mark.slow
async def test_rows_that_join_and_leave_get_the_tokens_of_a_plain_loop(engine, model_dir):
    async def late(i: int, prompt: list[int], sampling: Sampling) -> Generation:
        await asyncio.sleep(0.003 * i)
        return await engine.generate(prompt, sampling)

    work = requests(24)
    got = await asyncio.gather(*(late(i, p, s) for i, (p, s) in enumerate(work)))
    for (prompt, sampling), g in zip(work, got, strict=True):
        tokens, logprobs = plain_loop(model_dir, prompt, sampling)
        assert g.ids == tokens
        assert np.abs(np.array(g.logprobs) - logprobs).max() < 1e-5
    assert {g.finish for g in got} == {"stop", "eos", "length"}
    assert {g.ids[-1] for g in got if g.finish == "eos"} == set(ENDS)  # all of the generation config


@pytest.mark.slow
async def test_a_turn_that_goes_on_from_a_kept_one_is_computed_the_same(engine, model_dir):
    s = Sampling(1.0, 30, 5, ("</search>", "</answer>"))
    seeds = range(60)
    firsts = await asyncio.gather(*(engine.generate([3, 20, 2, 4], Sampling(1.0, 30, i, s.stop)) for i in seeds))
    stopped = [g for g in firsts if g.finish == "stop"]
    assert len(stopped) > 3
    prompts = [[3, 20, 2, 4, *g.ids, 10, 20 + i % 9, 11] for i, g in enumerate(stopped)]
    got = await asyncio.gather(*(engine.generate(p, s) for p in [*prompts, *prompts]))  # the second half has none kept
    for prompt, g in zip([*prompts, *prompts], got, strict=True):
        tokens, logprobs = plain_loop(model_dir, prompt, s)
        assert g.ids == tokens
        assert np.abs(np.array(g.logprobs) - logprobs).max() < 1e-5


async def test_alone_a_request_gives_the_same_bits_whoever_else_asks(make_config):
    work = requests(24)

    async def answered(config, order: list[int], beside: bool) -> dict[int, Generation]:
        engine = TorchEngine(config)
        await engine.start()
        if beside:
            got = await asyncio.gather(*(engine.generate(*work[i]) for i in order))
        else:
            got = [await engine.generate(*work[i]) for i in order]
        await engine.close()
        return dict(zip(order, got, strict=True))

    exact = make_config(actor={"exact": True})
    one_by_one = await answered(exact, list(range(24)), beside=False)
    assert await answered(exact, list(reversed(range(24))), beside=True) == one_by_one
    together = await answered(make_config(actor={"exact": False}), list(range(24)), beside=True)
    assert {i: g.ids for i, g in together.items()} == {i: g.ids for i, g in one_by_one.items()}
    assert together != one_by_one, "the last bits differ, else this test would show nothing"


async def test_turns_that_end_alike_are_counted_once_in_what_is_kept(engine):
    stop = ("</search>", "</answer>")
    seeds = [*range(20), *range(20)]
    got = await asyncio.gather(*(engine.generate([3, 20, 2, 4], Sampling(1.0, 30, i, stop)) for i in seeds))
    assert sum(g.finish == "stop" for g in got) > 2
    _, batch = engine._loaded
    assert batch._kept_bytes == sum(k.nbytes + v.nbytes for turn in batch._kept.values() for k, v in turn)


async def test_sampling_parameters_in_the_models_own_files_are_ignored(engine, model_dir):
    its_own = json.loads((model_dir / "generation_config.json").read_text())
    assert (its_own["top_k"], its_own["temperature"], its_own["repetition_penalty"]) == (1, 0.1, 5.0)
    s = Sampling(1.0, 30, 0)
    got = await asyncio.gather(*(engine.generate([3, 20, 2, 4], replace(s, seed=i)) for i in range(16)))
    assert len({g.ids[0] for g in got}) > 4  # top-k 1 has one
    for i, g in enumerate(got):
        assert g.ids == plain_loop(model_dir, [3, 20, 2, 4], replace(s, seed=i))[0]


async def test_greedy_ignores_the_seed(engine):
    a, b = [await engine.generate([3, 20, 2, 4], Sampling(0.0, 12, seed)) for seed in (1, 2)]
    assert a.ids == b.ids


async def test_every_token_has_the_log_probability_of_the_version_it_claims(engine, model_dir, publish, full_logprobs):
    notice, directory = publish(3, seed=1)
    await engine.swap(*publish(0, seed=0))
    await engine.verify(notice, directory)  # so that the swap under them waits for no disk
    begun = engine.progress
    running = [asyncio.ensure_future(engine.generate([3, 20 + i, 2, 4], Sampling(0.9, 120, i))) for i in range(12)]
    while engine.progress < begun + 150:
        await asyncio.sleep(0.001)
    await engine.swap(notice, directory)
    assert engine.version == Version(0, 3)
    got = await asyncio.gather(*running)
    where = {Version(0, 0): model_dir, Version(0, 3): directory}
    changed = 0
    for i, g in enumerate(got):
        assert sum(n for n, _ in g.version_runs) == len(g.ids)
        versions = [v for n, v in g.version_runs for _ in range(n)]
        changed += len(set(versions)) == 2
        ids = [3, 20 + i, 2, 4, *g.ids]
        for version in set(versions):
            truth = full_logprobs(where[version], ids, 4, 0.9)
            for ours, theirs, claimed in zip(g.logprobs, truth, versions, strict=True):
                assert claimed != version or abs(ours - theirs) < 3e-5
    assert changed > 0


async def test_a_wrong_file_is_refused_and_the_old_weights_go_on(engine, publish):
    await engine.swap(*publish(0, seed=0))
    before = await engine.generate([3, 20, 2, 4], Sampling(1.0, 20, 3))
    notice, directory = publish(1, seed=1, canary_seed=2)
    with pytest.raises(CanaryRefused, match="nats"):
        await engine.swap(notice, directory)
    after = await engine.generate([3, 20, 2, 4], Sampling(1.0, 20, 3))
    assert engine.version == Version(0, 0)
    assert (after.ids, after.logprobs) == (before.ids, before.logprobs)


async def test_damaged_missing_and_untied_files_are_refused(engine, publish, tmp_path):
    notice, directory = publish(1, seed=1)
    with pytest.raises(CanaryRefused, match="not there"):
        await engine.verify(notice, tmp_path / "nowhere")
    with (directory / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"abcd")
    with pytest.raises(CanaryRefused, match="digest"):
        await engine.verify(notice, directory)
    with pytest.raises(CanaryRefused, match="nats"):
        await engine.swap(*publish(2, seed=1, tied=False, root=tmp_path / "other"))
    assert engine.version is None


async def test_sequences_scored_together_have_the_log_probabilities_of_each_alone(engine, model_dir, full_logprobs):
    sequences = [[3, *range(14, 14 + n), 4] for n in (20, 20, 5, 20, 1)]
    starts = [2, 0, 1, 22, 3]  # the last two have nothing to score
    scored = await engine.score(sequences, starts)
    assert scored == [(await engine.score([s], [start]))[0] for s, start in zip(sequences, starts, strict=True)]
    for ours, sequence, start in zip(scored, sequences, starts, strict=True):
        assert ours == pytest.approx(full_logprobs(model_dir, sequence, max(start, 1)), abs=1e-5)


async def test_a_cancelled_request_leaves_the_batch(engine):
    running = asyncio.ensure_future(engine.generate([3, 20, 2, 4], Sampling(1.0, 100_000, 1)))
    running2 = asyncio.ensure_future(engine.generate([3, 20, 2, 4], Sampling(1.0, 100_000, 1)))
    await asyncio.sleep(0.01)
    for task in (running, running2):
        task.cancel()
    await asyncio.gather(running, running2, return_exceptions=True)
    await engine.score([[3, 20]], [1])
    await asyncio.sleep(0.05)
    assert engine._batch.empty


@pytest.mark.slow
async def test_many_rows_are_fast_and_the_event_loop_stays_free(make_config):
    engine = TorchEngine(make_config())
    await engine.start()
    worst = 0.0

    async def watch() -> None:
        nonlocal worst
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            worst = max(worst, time.monotonic() - before - 0.005)

    watcher = asyncio.ensure_future(watch())
    await asyncio.gather(*(engine.generate([3, 20 + i % 9, 2, 4], Sampling(1.0, 100, i)) for i in range(64)))
    watcher.cancel()
    await engine.close()
    assert worst < 0.5
