"""Rollouts of one prompt read it once, and give what each gives alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from services.learner.groups.group import Row
from services.learner.model import prefixes
from services.learner.model.batching import micro_batches
from services.learner.model.policy import is_packed, load_policy, logprobs, recompute_layers
from services.learner.model.prefixes import families

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with fewer key than query heads, whose attention matters."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    model.save_pretrained(folder := tmp_path_factory.mktemp("model"))
    return folder


def rows_of(groups: list[tuple[int, list[int]]]) -> list[Row]:
    """(length of the prompt, what each rollout adds), shuffled; every fourth token after a first one is masked out."""
    rng, rows = np.random.default_rng(1), []
    for prompt, rests in groups:
        shared = rng.integers(0, 64, prompt)
        for rest in rests:
            places = np.array([p for p in range(prompt, prompt + rest) if p == prompt or p % 4])
            tokens = np.concatenate([shared, rng.integers(0, 64, rest)])[: places[-1] + 1]
            rows.append(Row(tokens, places, 0))
    return [rows[i] for i in rng.permutation(len(rows))]


GROUPS = [(12, [5, 7, 3]), (12, [5, 6]), (7, [8, 6, 8]), (9, [4]), (2, [10, 12]), (1, [3, 3])]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_log_probabilities_and_gradients_are_those_of_rows_alone(folder: Path, recompute: bool) -> None:
    rows = rows_of(GROUPS)
    assert {length: sorted(map(len, members)) for length, members in families(rows).items()} == {11: [2, 3], 6: [3]}
    weights = torch.rand(sum(len(row.positions) for row in rows), generator=torch.Generator().manual_seed(0)) - 0.5
    together, alone = (load_policy(folder, torch.float32, CPU, packed=packed) for packed in (True, False))
    if recompute:
        recompute_layers(together)
    ours = logprobs(together, rows, 0.8)
    theirs = torch.cat([logprobs(alone, [row], 0.8) for row in rows])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for logp in (ours, theirs):
        (weights * logp).sum().backward()
    for a, b in zip(together.parameters(), alone.parameters(), strict=True):
        assert b.grad.abs().max() > 1e-3
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "spared"), [(torch.float32, 11 * 3 + 6 * 2), (torch.bfloat16, 0)])
def test_a_prompt_is_read_once_where_kernels_round_alike(folder: Path, dtype: torch.dtype, spared: int) -> None:
    model, rows, read = load_policy(folder, dtype, CPU), rows_of(GROUPS), []
    model.base_model.layers[0].mlp.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[1]))
    with torch.no_grad():
        logprobs(model, rows, 1.0)
    assert read == [sum(row.inputs for row in rows) - spared]


def test_the_same_rows_give_the_same_bits(folder: Path) -> None:
    found = []
    for _ in range(2):
        model = load_policy(folder, torch.float32, CPU)
        logprobs(model, rows_of(GROUPS), 1.0).sum().backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_prompt_that_is_shared_wrongly_is_noticed_when_the_model_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = prefixes.attend

    def one_token_too_far(module: Any, query: Any, key: Any, value: Any, block: Any, scaling: Any) -> Any:
        object.__setattr__(block, "mask", torch.ones_like(block.mask).tril(block.length + 1))
        return right(module, query, key, value, block, scaling)

    monkeypatch.setattr("services.learner.model.packing.attend", one_token_too_far)
    model = load_policy(folder, torch.float32, CPU)
    assert not is_packed(model)
    assert "have other log-probabilities" in caplog.text


def test_a_prompt_is_not_shared_where_one_row_is_much_longer_than_the_others() -> None:
    assert families(rows_of([(21, [10] * 8)])).keys() == {20}
    assert not families(rows_of([(21, [40] + [10] * 7)]))
    assert [len(family) for family in families(rows_of([(21, [10] * 8), (21, [38] * 2)]))[20]] == [8], "in one block"


def test_rows_that_can_share_a_prompt_follow_the_longest_of_them() -> None:
    rows = [replace(row, start=i) for i, row in enumerate(rows_of([(30, [9, 5, 20]), (40, [8, 2]), (1, [45, 37])]))]
    (cut,) = micro_batches(rows, 1000, packed=True, sharing=True)
    assert [row.inputs for row in cut] == [49, 38, 34, 47, 41, 45, 37]
    assert list(micro_batches(rows[::-1], 1000, packed=True, sharing=True)) == [cut]
    (padded,) = micro_batches(rows, 1000, packed=False)
    assert [row.inputs for row in padded] == [49, 47, 45, 41, 38, 37, 34]
