"""What vLLM is started with, where no engine is needed to see it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from services.actor.engines.vllm_setup import cache_bytes, engine_arguments
from shared.config import Config


@pytest.mark.parametrize(
    ("dtype", "on_cpu", "unrounded"),
    [("auto", False, True), ("bfloat16", False, True), ("float32", False, False), ("bfloat16", True, False)],
)
def test_on_a_gpu_logits_are_not_rounded_to_bfloat16(
    make_config: Callable[..., Config], model_dir: Path, dtype: str, on_cpu: bool, unrounded: bool
) -> None:
    arguments = engine_arguments(make_config(model={"path": str(model_dir), "dtype": dtype}), model_dir, on_cpu)
    assert arguments.get("hf_overrides") == ({"head_dtype": "float32"} if unrounded else None)


@pytest.mark.parametrize("cache", [0, 2**30])
def test_vllm_asks_for_no_more_of_a_gpu_than_its_share_whatever_its_cache_takes(
    make_config: Callable[..., Config], model_dir: Path, cache: int
) -> None:
    config = make_config(actor={"gpu_memory_utilization": 0.3, "kv_cache_bytes": cache})
    arguments = engine_arguments(config, model_dir, on_cpu=False)
    assert arguments["gpu_memory_utilization"] == 0.3
    assert arguments.get("kv_cache_memory_bytes", 0) == cache


def test_the_cache_is_of_the_text_part_of_a_model_that_has_others(
    make_config: Callable[..., Config], model_dir: Path, tmp_path: Path
) -> None:
    text = json.loads((model_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "text_config": text}))
    assert cache_bytes(make_config(), tmp_path, "float32") == cache_bytes(make_config(), model_dir, "float32")
    for odd in (None, [1]):
        (tmp_path / "config.json").write_text(json.dumps(text | {"text_config": odd}))
        assert cache_bytes(make_config(), tmp_path, "float32") == cache_bytes(make_config(), model_dir, "float32")
