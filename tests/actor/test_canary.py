"""The canary: what it lets through and what it refuses, in float32 and in bfloat16, on a trained model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.actor.engines.canary import BF16_MEAN, check_canary, mismatch, tolerance
from services.actor.engines.engine import CanaryRefused
from services.actor.engines.torch_model import TorchModel
from services.learner.model.policy import load_policy
from services.learner.weights.canary import canary_of, sampled_sequences
from shared.config import build
from shared.messages import CanarySequence

MODEL = Path(__file__).resolve().parents[2] / "examples" / "arith" / "policy"
CPU = torch.device("cpu")
Change = Callable[[Any], object]


def one(differences: Any) -> tuple[list[CanarySequence], list[list[float]]]:
    """A canary of one sequence, and what an actor made of it."""
    zeros = [0.0] * len(differences)
    return [CanarySequence(tokens=[0] * (len(zeros) + 1), start=1, logprobs=zeros)], [list(map(float, differences))]


def test_single_tokens_far_off_are_rounding_and_a_tenth_of_them_is_not() -> None:
    rounding = np.random.default_rng(0).exponential(0.05, 128)
    rounding[:3] = 0.69  # what another attention kernel did to a token of the right weights
    check_canary(*one(rounding), BF16_MEAN)
    of_a_few = np.full(128, 0.002)
    of_a_few[:14] = 0.6
    off = mismatch(*one(of_a_few))
    assert off is not None and off.mean < BF16_MEAN
    with pytest.raises(CanaryRefused, match=r"0\.6 for nine in ten"):
        check_canary(*one(of_a_few), BF16_MEAN)
    with pytest.raises(CanaryRefused, match=r"0\.13 nats in the mean"):
        check_canary(*one(np.full(128, 0.13)), BF16_MEAN)


def test_numbers_that_are_none_and_other_lengths_are_refused_and_no_canary_proves_nothing() -> None:
    for wrong in (np.nan, -np.inf):
        with pytest.raises(CanaryRefused, match="nan nats"):
            check_canary(*one([0.0, wrong]), BF16_MEAN)
    canary, _ = one([0.0, 0.0])
    with pytest.raises(CanaryRefused, match="canary 0: 1 log-probabilities for 2"):
        check_canary(canary, [[0.0]], BF16_MEAN)
    assert mismatch([], []) is None
    check_canary([], [], BF16_MEAN)


def test_the_tolerance_is_that_of_the_type_unless_it_is_set() -> None:
    canary, _ = one([0.0])
    assert tolerance(build({}), "float32", canary) < 1e-3 < tolerance(build({}), "bfloat16", canary) == BF16_MEAN
    assert tolerance(build({"actor": {"canary_tolerance": 0.3}}), "float32", canary) == 0.3


def swap_layers(model: Any) -> None:
    layers = model.base_model.layers
    layers[0], layers[1] = layers[1], layers[0]


def zero_a_matrix(model: Any) -> None:
    model.base_model.layers[0].self_attn.o_proj.weight.zero_()


def move(by: float) -> Change:
    """Every weight, as an optimiser's step does with by = its learning rate."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(1)
        for p in model.parameters():
            p.copy_(p.float() + by * (2 * torch.randint(2, p.shape, generator=generator) - 1))

    return change


def another_head(model: Any) -> None:
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.randn(head.weight.shape) * head.weight.float().std(), False)
    head.to(model.dtype)


@torch.no_grad()
def test_the_torch_engine_makes_its_logits_as_the_learner_does() -> None:
    torch.manual_seed(0)
    learner, engine = load_policy(MODEL, torch.bfloat16, CPU), TorchModel(MODEL, "cpu", torch.bfloat16)
    canary = canary_of(learner, sampled_sequences(learner, 4, 32))
    off = mismatch(canary, engine.score([c.tokens for c in canary], [c.start for c in canary]))
    assert off is not None and off.worst < 1e-4  # one kernel for the attention, and nothing rounded after it


@pytest.mark.parametrize(("learners", "actors"), [("bfloat16", "float32"), ("float32", "bfloat16")])
@torch.no_grad()
def test_a_learner_on_a_gpu_and_an_actor_on_a_processor_are_held_to_the_coarser_type(
    learners: str, actors: str
) -> None:
    torch.manual_seed(0)
    learner, engine = (
        load_policy(MODEL, getattr(torch, learners), CPU),
        TorchModel(MODEL, "cpu", getattr(torch, actors)),
    )
    canary = canary_of(learner, sampled_sequences(learner, 4, 32))
    limit = tolerance(build({}), actors, canary)
    check_canary(canary, engine.score([c.tokens for c in canary], [c.start for c in canary]), limit)
    swap_layers(engine.model)
    with pytest.raises(CanaryRefused, match="nats in the mean"):
        check_canary(canary, engine.score([c.tokens for c in canary], [c.start for c in canary]), limit)


def nothing(model: Any) -> None: ...


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("change", "seen_in"),
    [
        (nothing, ()),
        (swap_layers, ("float32", "bfloat16")),
        (zero_a_matrix, ("float32", "bfloat16")),
        (another_head, ("float32", "bfloat16")),
        (move(1e-5), ("float32",)),
    ],
    ids=["right", "layers", "matrix", "head", "older"],
)
@torch.no_grad()
def test_wrong_weights_are_told_from_another_attention_kernel(
    dtype: str, change: Change, seen_in: tuple[str, ...]
) -> None:
    """The learner packs rows and scores with one kernel, this engine with another, one sequence at a time."""
    torch.manual_seed(0)
    learner = load_policy(MODEL, getattr(torch, dtype), CPU)
    canary = canary_of(learner, sampled_sequences(learner, 4, 32))
    theirs: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=learner.dtype, attn_implementation="eager").eval()
    change(theirs)
    scored = []
    for sequence in canary:
        ids = torch.tensor(sequence.tokens)
        logp = theirs(ids[None]).logits[0, :-1].float().log_softmax(-1)
        scored.append(logp.gather(-1, ids[1:, None])[:, 0].tolist())
    limit = tolerance(build({}), dtype, canary)
    if dtype in seen_in:
        with pytest.raises(CanaryRefused, match="nats in the mean"):
            check_canary(canary, scored, limit)
    else:
        check_canary(canary, scored, limit)
