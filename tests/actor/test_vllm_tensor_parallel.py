"""vLLM's engine over two workers, each with its part of every matrix: what is swapped in reaches both."""

import asyncio

import numpy as np
import pytest
import pytest_asyncio

from services.actor.engines.engine import CanaryRefused, Sampling
from services.actor.engines.vllm_engine import VllmEngine
from shared.config import build
from shared.versions import Version
from tests.actor.running import eight_under_way
from tests.actor.test_vllm_engine import gap

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_dir):
    tree = {
        "model": {"path": str(model_dir)},
        "env": {"prompt": "plain"},
        "rollout": {"max_tokens": 400, "max_prompt_tokens": 60, "max_turn_tokens": 100, "group_size": 8},
        "actor": {"engine": "vllm", "groups": 1, "threads": 1, "tensor_parallel": 2},
    }
    engine = VllmEngine(build(tree))
    await engine.start()
    yield engine
    await engine.close()


async def test_weights_come_into_both_workers_while_requests_run(engine, model_dir, publish, full_logprobs):
    await engine.swap(*publish(0, seed=0))
    notice, directory = publish(1, seed=1)
    prompts, running = await eight_under_way(engine)
    await engine.swap(notice, directory)
    where = {Version(0, 0): model_dir, Version(0, 1): directory}
    seen = set()
    for prompt, g in zip(prompts, await asyncio.gather(*running), strict=True):
        claimed = [v for n, v in g.version_runs for _ in range(n)]
        seen |= set(claimed)
        for version in set(claimed):
            error = gap(where[version], prompt, g, full_logprobs)
            assert np.abs(error[[c == version for c in claimed]]).max() < 1e-4
    assert seen == set(where)
    tokens = [3, *range(14, 50), 4]
    [scored] = await engine.score([tokens], [5])
    assert np.abs(np.array(scored) - full_logprobs(directory, tokens, 5)).max() < 1e-5


async def test_a_refused_version_leaves_both_workers_at_the_old_one(engine, publish, full_logprobs):
    good, old = publish(2, seed=1)
    await engine.swap(good, old)
    with pytest.raises(CanaryRefused):
        await engine.swap(*publish(3, seed=5, canary_seed=6))
    prompt = [3, 20, 2, 4]
    after = await engine.generate(prompt, Sampling(1.0, 60, 9))
    assert {version for _, version in after.version_runs} == {Version(0, 2)}
    assert np.abs(gap(old, prompt, after, full_logprobs)).max() < 1e-4
