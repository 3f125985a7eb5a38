"""Packed rows give what padded rows give, and what every row gives alone."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from services.learner.groups.group import Row
from services.learner.model import policy
from services.learner.model.batching import flatten
from services.learner.model.packing import can_pack, pack
from services.learner.model.policy import is_packed, load_policy, logprobs, recompute_layers
from services.learner.step import _accumulate, scan, train_step
from services.learner.totals import Totals
from tests.tiny_model import END, pad_with_end

CPU = torch.device("cpu")
ATLAS = Path(__file__).parents[2] / "examples/atlas/policy"


@pytest.fixture(params=["llama", "qwen2"])
def pair(request: Any, policy_dir: Path, tmp_path: Path) -> tuple[Any, Any]:
    """(packed, padded) copies of one model with fewer key than query heads; Qwen2 also has biases."""
    folder = policy_dir
    if request.param == "qwen2":
        torch.manual_seed(3)
        sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2))
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.2)
        model.save_pretrained(folder := tmp_path)
    return load_policy(folder, torch.float32, CPU), load_policy(folder, torch.float32, CPU, packed=False)


def ragged(make_group: Any) -> list[Any]:
    """Groups with observations that are masked out and one unscored rollout."""
    return [make_group(f"g{i}", i, stored=0.05, rewards=[1.0, 0.0, None, 1.0, 0.0]) for i in range(5)]


def test_log_probabilities_are_those_of_the_padded_path(pair: tuple[Any, Any], make_group: Any) -> None:
    rows = flatten(ragged(make_group)).rows
    packed, padded = pair
    assert is_packed(packed) and not is_packed(padded)
    assert len({row.inputs for row in rows}) > 3
    with torch.no_grad():
        ours, theirs = logprobs(packed, rows, 0.8), logprobs(padded, rows, 0.8)
        alone = torch.cat([logprobs(padded, [row], 0.8) for row in rows])
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ours, alone, atol=1e-6, rtol=1e-6)


def test_gradients_of_a_mini_batch_are_those_of_the_padded_path(
    pair: tuple[Any, Any], make_group: Any, make_trainer: Any
) -> None:
    gradients = []
    for model in pair:
        trainer = make_trainer(model, micro_tokens=100)
        flat = flatten(ragged(make_group))
        _accumulate(trainer, 0, flat, torch.zeros_like(flat.rollout, dtype=torch.bool), {}, Totals())
        gradients.append([p.grad for p in model.parameters()])
    assert max(g.abs().max() for g in gradients[0]) > 1e-3
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_nothing_that_is_computed_is_padding(pair: tuple[Any, Any], make_group: Any, make_trainer: Any) -> None:
    totals = [train_step(make_trainer(model, micro_tokens=200), 0, [], ragged(make_group))[1] for model in pair]
    assert [t.inputs for t in totals] == [totals[0].padded] * 2
    assert totals[1].padded > totals[1].inputs


def test_a_scan_measures_the_same(pair: tuple[Any, Any], make_group: Any, make_trainer: Any) -> None:
    packed, padded = (scan(make_trainer(model), ragged(make_group)) for model in pair)
    for a, b in zip(packed, padded, strict=True):
        assert (a.headroom, a.drift) == pytest.approx((b.headroom, b.drift), abs=1e-6)


def test_layers_that_are_recomputed_run_twice_and_give_the_same_gradient(
    pair: tuple[Any, Any], make_group: Any
) -> None:
    model, rows, runs, gradients = pair[0], flatten(ragged(make_group)).rows, [], []
    model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    for recompute in (False, True):
        if recompute:
            recompute_layers(model)
        model.zero_grad()
        logprobs(model, rows, 1.0).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert len(runs) == 1 + 2
    assert not any(part.training for part in model.base_model.layers[0].children())
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_later_row_never_changes_an_earlier_one(pair: tuple[Any, Any], make_group: Any) -> None:
    first, second, other = (flatten([make_group(f"g{i}", i)]).rows[0] for i in (1, 2, 3))
    with torch.no_grad():
        a, b = (logprobs(pair[0], [first, row], 1.0)[: len(first.positions)] for row in (second, other))
    assert torch.equal(a, b)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_a_sampled_end_is_scored_where_it_is_the_padding_token_too(
    policy_dir: Path, tmp_path: Path, packed: bool
) -> None:
    same = pad_with_end(shutil.copytree(policy_dir, tmp_path / "model"))
    texts = [[20, 21, END], [20, 21, END, 22, 23, END], [30, END, END, END]]  # it ends turns, and repeats itself
    rows = [Row(np.array([3, 20, END, 4, *said]), np.arange(4, 4 + len(said)), 0) for said in texts]
    models = [load_policy(folder, torch.float32, CPU, packed=packed) for folder in (policy_dir, same)]
    with torch.no_grad():
        other, ours = (logprobs(model, rows, 1.0) for model in models)
    assert len(ours) == sum(map(len, texts)) and torch.equal(ours, other)


def test_a_model_with_a_window_is_padded_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
    config = MistralConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, sliding_window=4)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "headrace"):
        model = load_policy(tmp_path, torch.float32, CPU)
    assert not is_packed(model)
    assert "rows are padded" in caplog.text
    assert can_pack(MistralConfig(**sizes, sliding_window=None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[8, 6, 6, 3], [23], [8, 7, 5, 3]], ids=["right", "one row", "a boundary too late"])
def test_rows_that_are_packed_wrongly_are_noticed_when_the_model_is_loaded(
    dtype: torch.dtype, lengths: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrongly(*rows: Any, **settings: Any) -> Any:
        inputs, starts, beside = pack(*rows, **settings)
        return inputs, starts, beside | ({"row_lengths": lengths} if len(starts) == 4 else {})

    monkeypatch.setattr(policy, "pack", wrongly)
    right = lengths == [8, 6, 6, 3]
    with caplog.at_level(logging.WARNING, "headrace"):
        model = load_policy(ATLAS, dtype, CPU)
    assert is_packed(model) == right
    assert right or "have other log-probabilities" in caplog.text


def test_the_published_configuration_does_not_name_our_attention(pair: tuple[Any, Any], tmp_path: Path) -> None:
    pair[0].save_pretrained(tmp_path / "out")
    assert "headrace" not in (tmp_path / "out" / "config.json").read_text()
