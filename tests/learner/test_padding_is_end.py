"""Where a model's padding token is its end, the end's embedding is trained like that of any other token."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from services.learner.groups.group import Row
from services.learner.model.policy import load_policy, logprobs
from services.learner.ranks.members import Ranks
from services.learner.ranks.sharded import load_sharded
from shared.adapters import add_adapters, parameters_of
from shared.settings import Learner
from tests.tiny_model import END, VOCABULARY, build_model, pad_with_end

CPU = torch.device("cpu")
TOKENS = torch.tensor([3, 20, END, 4, 20, END, 22, 23, END])
ROW = Row(TOKENS.numpy(), TOKENS.numpy().nonzero()[0][1:], 0)


def written(folder: Path, *, tied: bool = True, zeros: bool = False) -> Path:
    """zeros: what transformers leaves in the row of padding where it initialises a model."""
    model: Any = build_model(2, tied)
    if zeros:
        torch.nn.init.zeros_(model.get_input_embeddings().weight[END])
    model.save_pretrained(folder)
    return pad_with_end(folder)


def weighed(logp: torch.Tensor) -> torch.Tensor:
    return (logp * torch.linspace(-1, 2, len(logp))).sum()


def gradient_by_hand(folder: Path) -> torch.Tensor:
    """Of the embedding, which is a product with the tokens' unit vectors here."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    table = model.get_input_embeddings().weight
    units = torch.eye(VOCABULARY)[TOKENS[:-1]]
    logp = model(inputs_embeds=(units @ table)[None]).logits[0].log_softmax(-1)
    return torch.autograd.grad(weighed(logp.gather(-1, TOKENS[1:, None])[:, 0]), table)[0]


def gradient(model: Any) -> Any:
    weighed(logprobs(model, [ROW], 1.0)).backward()
    return model.get_input_embeddings().weight.grad


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("zeros", [False, True], ids=["made", "zeros"])
def test_the_row_of_the_end_has_the_gradient_that_it_has_by_hand(tmp_path: Path, tied: bool, zeros: bool) -> None:
    folder = written(tmp_path, tied=tied, zeros=zeros)
    expected = gradient_by_hand(folder)
    largest = float(expected.abs().max())
    assert expected[END].abs().max() > 0.1 * largest
    found = gradient(load_policy(folder, torch.float32, CPU))
    torch.testing.assert_close(found, expected, atol=1e-5 * largest, rtol=1e-4)


def test_the_row_has_it_in_shards(tmp_path: Path) -> None:
    folder = written(tmp_path)
    dist.init_process_group("gloo", f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        model = load_sharded(folder, torch.float32, CPU, Ranks(group=dist.group.WORLD), packed=True)
        found = gradient(model).full_tensor()
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(found, gradient_by_hand(folder), atol=1e-5, rtol=1e-4)


def test_log_probabilities_are_those_of_the_model_as_transformers_loads_it(tmp_path: Path) -> None:
    folder = written(tmp_path)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert theirs.get_input_embeddings().padding_idx == END
    with torch.no_grad():
        ours = logprobs(load_policy(folder, torch.float32, CPU), [ROW], 1.0)
        expected = theirs(TOKENS[None, :-1]).logits[0].log_softmax(-1).gather(-1, TOKENS[1:, None])[:, 0]
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.slow  # peft takes seconds to import
def test_beside_adapters_the_embedding_is_still_not_trained(tmp_path: Path) -> None:
    model = load_policy(written(tmp_path), torch.float32, CPU)
    add_adapters(model, Learner(lora_rank=3))
    assert gradient(model) is None
    assert all(p.grad is not None for p in parameters_of(model).values())
