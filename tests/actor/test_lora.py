"""Adapters in the torch engine: put beside its own base, changed in flight, refused where they are not right."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from services.actor.engines.engine import CanaryRefused, Sampling
from services.actor.engines.torch_engine import TorchEngine
from services.actor.engines.vllm_setup import engine_arguments
from services.actor.evaluate import put_beside
from shared import weights
from shared.adapters import CONFIG, WEIGHTS, adapters_of, add_adapters
from shared.config import Config
from shared.messages import WeightsNotice
from shared.settings import Learner
from shared.versions import Version
from tests.actor.conftest import canary_of
from tests.tiny_model import build_model

pytestmark = pytest.mark.slow  # peft alone takes seconds to import
LORA = {"lora_rank": 3, "lora_alpha": 6}
Publish = Callable[..., tuple[WeightsNotice, Path, Any]]


@pytest.fixture
def publish_adapters(tmp_path: Path) -> Publish:
    """Publish random adapters of the tiny model; returns notice, folder and the model that has them."""

    def publish(number: int, seed: int, *, model_seed: int = 0, canary_seed: int | None = None) -> Any:
        def model_of(seed: int) -> Any:
            model = build_model(model_seed)
            add_adapters(model, Learner.model_validate(LORA))
            generator = torch.Generator().manual_seed(seed)
            for tensor in adapters_of(model).values():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
            return model

        model = model_of(seed)

        def write(folder: Path) -> None:
            model.peft_config["default"].save_pretrained(folder)
            save_file({n: t.contiguous() for n, t in adapters_of(model).items()}, folder / WEIGHTS)

        version = Version(0, number)
        path, digest, size = weights.publish(tmp_path / "weights", version, write)
        truth = model if canary_seed is None else model_of(canary_seed)
        canary = [canary_of(truth, [3, *range(14, 14 + n), 4], start=2) for n in (5, 20)]
        notice = WeightsNotice(
            version=version, location=path.name, digest=digest, size=size, published=0.0, canary=canary
        )
        return notice, path, model

    return publish


def gap(model: Any, prompt: list[int], generation: Any) -> np.ndarray:
    truth = canary_of(model, [*prompt, *generation.ids], len(prompt)).logprobs
    return np.array(generation.logprobs) - truth


async def check_swaps_in_flight(engine: Any, publish_adapters: Publish) -> None:
    """Version after version under eight requests: none is lost, every token is of the version on its label."""
    models = {}
    prompts = [[3, 20 + i, 2, 4] for i in range(8)]
    # made before, since a slow disk outlasts the requests
    published = [publish_adapters(number, seed=1 + number) for number in range(3)]
    for notice, _, model in published:
        models[notice.version] = model
    await engine.swap(*published[0][:2])
    await engine.verify(*published[1][:2])  # so that the first swap under them waits for no disk
    running = [asyncio.ensure_future(engine.generate(p, Sampling(1.0, 380, i))) for i, p in enumerate(prompts)]
    for notice, folder, _ in published[1:]:
        before = engine.progress
        while engine.progress < before + 8 and not all(r.done() for r in running):
            await asyncio.sleep(0.001)
        assert await engine.swap(notice, folder) < 5
    got = await asyncio.gather(*running)
    seen = set()
    for prompt, g in zip(prompts, got, strict=True):
        claimed = [v for n, v in g.version_runs for _ in range(n)]
        assert len(claimed) == len(g.ids)
        seen |= set(claimed)
        for version in set(claimed):
            assert np.abs(gap(models[version], prompt, g)[[c == version for c in claimed]]).max() < 1e-4
    assert len(seen) > 1
    after = await engine.generate([3, 20, 2, 4], Sampling(1.0, 40, 9))
    assert np.abs(gap(models[Version(0, 2)], [3, 20, 2, 4], after)).max() < 1e-4


async def check_refusals(engine: Any, publish_adapters: Publish) -> None:
    """Wrong adapters, a wrong base and files that lack half of it are refused; those in force answer on."""
    notice, folder, model = publish_adapters(3, seed=7)
    await engine.swap(notice, folder)
    wrong, its_folder, _ = publish_adapters(4, seed=8, canary_seed=9)
    with pytest.raises(CanaryRefused, match="nats"):
        await engine.swap(wrong, its_folder)
    other_base, its_folder, _ = publish_adapters(5, seed=7, model_seed=1)
    with pytest.raises(CanaryRefused, match="nats"):
        await engine.swap(other_base, its_folder)
    halved, its_folder, of_model = publish_adapters(6, seed=8)
    some = {n: t.contiguous() for n, t in adapters_of(of_model).items() if "layers.0" in n}
    save_file(some, its_folder / WEIGHTS)
    with pytest.raises(CanaryRefused):
        await engine.swap(halved, its_folder)
    assert engine.version == Version(0, 3)
    after = await engine.generate([3, 20, 2, 4], Sampling(1.0, 40, 9))
    assert np.abs(gap(model, [3, 20, 2, 4], after)).max() < 1e-4


def test_vllm_makes_room_for_adapters_in_the_layers_and_not_at_the_output(
    make_config: Callable[..., Config], model_dir: Path
) -> None:
    arguments = engine_arguments(make_config(learner=LORA), model_dir, on_cpu=True)
    assert arguments["max_lora_rank"] == 8  # the least of its sizes that holds 3
    attention, forward = ["k_proj", "o_proj", "q_proj", "v_proj"], ["down_proj", "gate_proj", "up_proj"]
    assert arguments["lora_target_modules"] == sorted(attention + forward)
    some = engine_arguments(make_config(learner=LORA | {"lora_targets": "q_proj, v_proj"}), model_dir, on_cpu=True)
    assert some["lora_target_modules"] == ["q_proj", "v_proj"]
    assert "enable_lora" not in engine_arguments(make_config(), model_dir, on_cpu=True)


async def test_an_evaluation_has_adapters_beside_their_base_that_nobody_announced(
    make_config: Callable[..., Config], publish_adapters: Publish
) -> None:
    _, folder, model = publish_adapters(1, seed=3)
    engine = TorchEngine(make_config(learner=LORA))
    await engine.start()
    await put_beside(engine, folder, 60)
    said = await engine.generate([3, 20, 2, 4], Sampling(1.0, 20, 9))
    assert np.abs(gap(model, [3, 20, 2, 4], said)).max() < 1e-4
    await engine.close()


async def test_the_torch_engine_changes_adapters_in_flight(
    make_config: Callable[..., Config], publish_adapters: Publish
) -> None:
    engine = TorchEngine(make_config(rollout={"max_tokens": 400, "max_turn_tokens": 100}, learner=LORA))
    await engine.start()
    await check_swaps_in_flight(engine, publish_adapters)
    await check_refusals(engine, publish_adapters)
    await engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_vllm_changes_adapters_in_flight(make_config: Callable[..., Config], publish_adapters: Publish) -> None:
    from services.actor.engines.vllm_engine import VllmEngine

    settings = {"rollout": {"max_tokens": 400, "max_turn_tokens": 100}, "actor": {"engine": "vllm", "groups": 4}}
    engine = VllmEngine(make_config(**settings, learner=LORA))
    await engine.start()
    notice, folder, _ = publish_adapters(9, seed=8, canary_seed=9)  # the first of all: behind it is the base alone
    with pytest.raises(CanaryRefused, match="nats"):
        await engine.swap(notice, folder)
    assert engine.version is None
    await check_swaps_in_flight(engine, publish_adapters)
    await check_refusals(engine, publish_adapters)
    of_rank_16 = folder / CONFIG
    of_rank_16.write_text(json.dumps(json.loads(of_rank_16.read_text()) | {"r": 16}))
    with pytest.raises(CanaryRefused, match="rank"):
        await engine.swap(notice, folder)
    await engine.close()
