"""A learner and vLLM on the one GPU of a machine, by arithmetic."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.run import preflight
from cli.run.one_gpu import Model, activation_bytes, learner_bytes, refusal
from cli.run.preflight import Preflight
from shared.config import build
from shared.errors import UserError
from shared.gpus import Gpu

GIB = 2**30
SMALL, LARGE = 494_000_000, 7_600_000_000  # parameters of Qwen2.5-0.5B and -7B
H100 = Gpu("GPU-a", total=80 * GIB)
QWEN_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
}


def config_of(learner: dict[str, Any] | None = None, **actor: Any) -> Any:
    return build({"actor": {"engine": "vllm", **actor}, "learner": learner or {}})


def test_what_a_learner_takes_is_what_operations_says() -> None:
    """Of a model of 7.6 billion parameters, in billions of bytes."""
    settings = [{}, {"optimizer": "adamw8bit"}, {"offload": True}, {"lora_rank": 16}, {"ranks": 4}]
    settings += [{"ranks": 4, "offload": True}]
    takes = [round(learner_bytes(config_of(s), Model(LARGE, 2)) / 1e9) for s in settings]
    assert takes == [152, 106, 30, 15, 30, 0]
    with_reference = [round(learner_bytes(config_of(s), Model(LARGE, 2, LARGE)) / 1e9) for s in settings]
    assert with_reference == [167, 122, 46, 30, 34, 0]


def test_activations_are_what_operations_says() -> None:
    """Of 8,192 tokens of Qwen2.5-7B in bfloat16, in billions of bytes."""
    settings = [{}, {"recompute": True}, {"lora_rank": 16}]
    model = Model(LARGE, 2, architecture=QWEN_7B)
    takes = [activation_bytes(config_of({"micro_tokens": 8192} | s), model) / 1e9 for s in settings]
    assert [round(size, 1) for size in takes] == [48.4, 3.4, 33.1]
    few = config_of({"micro_tokens": 10**6, "batch": 2})  # of 8 rollouts of 4,096 tokens
    assert activation_bytes(few, model) == 1024 * activation_bytes(config_of({"micro_tokens": 64}), model)
    without = dict(QWEN_7B, intermediate_size=0)
    assert activation_bytes(few, Model(LARGE, 2, architecture=dict(QWEN_7B, num_experts=8))) == activation_bytes(
        few, Model(LARGE, 2, architecture=without)
    )
    assert activation_bytes(few, Model(LARGE, 2, architecture={"text_config": QWEN_7B})) == activation_bytes(few, model)
    odd = QWEN_7B | {"text_config": [1]}
    assert activation_bytes(few, Model(LARGE, 2, architecture=odd)) == activation_bytes(few, model)
    assert activation_bytes(few, Model(LARGE, 2, architecture={"n_embd": 8})) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "learner", "times"),
    [
        (4, {}, 1.1),
        (2, {}, 1.2),
        (4, {"lora_rank": 2, "lora_targets": "v_proj,o_proj"}, 1.3),
        (2, {"lora_rank": 2}, 3),  # which takes its inputs in float32
    ],
)
def test_a_backward_pass_keeps_at_least_that_and_little_more(own: int, learner: dict[str, Any], times: float) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from shared.adapters import add_adapters

    tokens = 128
    config = config_of({"micro_tokens": tokens, **learner})
    made = Qwen2Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=688,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    model: Any = AutoModelForCausalLM.from_config(made, dtype=torch.float32 if own == 4 else torch.bfloat16).eval()
    if learner:
        add_adapters(model, config.learner)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.int64), use_cache=False)
    takes = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    expected = activation_bytes(config, Model(0, own, architecture=made.to_dict()))
    assert expected <= takes < times * expected, f"{takes / expected:.2f}"


def test_a_learner_that_vllm_leaves_no_room_is_refused_with_what_would_fit() -> None:
    said = str(refusal(config_of(), [H100], Model(2 * SMALL, 2)))
    assert "this machine's one GPU has 80.0 GiB, of which the learner takes 18.4 and 0.0 for activations of" in said
    assert "actor.gpu_memory_utilization = 0.85 68.0: set actor.gpu_memory_utilization to 0.76 or less" in said
    assert refusal(config_of(gpu_memory_utilization=0.76), [H100], Model(2 * SMALL, 2)) is None
    assert "to 0.38 or less" in str(refusal(config_of(count=2), [H100], Model(2 * SMALL, 2)))
    assert "learner.offload" in str(refusal(config_of(), [H100], Model(LARGE, 2)))


def test_activations_and_a_kl_reference_count() -> None:
    config = config_of({"micro_tokens": 2048}, gpu_memory_utilization=0.76)
    assert "11.3 for activations of learner.micro_tokens = 2048" in str(
        refusal(config, [H100], Model(2 * SMALL, 2, architecture=QWEN_7B))
    )
    assert "takes 20.2 and" in str(refusal(config, [H100], Model(2 * SMALL, 2, 2 * SMALL)))


def test_those_who_share_several_all_take_the_first() -> None:
    said = str(refusal(config_of(), [H100, Gpu("GPU-b", total=200 * GIB)], Model(2 * SMALL, 2)))
    assert said.startswith("the first of the 2 GPUs here, which learner and actors take with run.gpus = 'share',")


@pytest.mark.parametrize(
    ("config", "gpu"),
    [
        (config_of(), H100),
        (config_of(count=0, gpu_memory_utilization=1.0), H100),
        (config_of(gpu_memory_utilization=1.0), Gpu("GPU-a")),  # the driver does not say
    ],
)
def test_a_pair_that_fits_is_not(config: Any, gpu: Gpu) -> None:
    assert refusal(config, [gpu], Model(SMALL, 2)) is None


@pytest.mark.parametrize(
    ("gpus", "run", "learner", "actor", "refused"),
    [
        (1, {}, {}, {}, True),
        (2, {}, {}, {}, False),
        (2, {"gpus": "share"}, {}, {}, True),
        (0, {}, {}, {}, False),
        (1, {}, {"device": "cpu"}, {}, False),
        (1, {}, {}, {"engine": "torch"}, False),
    ],
)
def test_preflight_refuses_it_where_they_do_share_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, run: Any, learner: Any, actor: Any, refused: bool
) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [LARGE], "data_offsets": [0, 2 * LARGE]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(preflight, "visible_gpus", lambda: [H100] * gpus)
    tree = {"run": run, "learner": learner, "actor": {"engine": "vllm", **actor}, "model": {"dtype": "bfloat16"}}
    check = Preflight(build(tree))
    if refused:
        with pytest.raises(UserError, match=r"this machine's one GPU|the first of the 2"):
            check._gpus(tmp_path)
    else:
        check._gpus(tmp_path)
        assert check.notes == []
