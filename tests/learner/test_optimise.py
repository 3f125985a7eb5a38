"""The schedule, clipping, and float32 masters under a bfloat16 model."""

import pytest
import torch
from torch.nn import Parameter

from services.learner.model.optimise import Optimiser, lr_at
from shared.errors import UserError
from shared.settings import Learner


def rates(schedule: str) -> list[float]:
    return [lr_at(step, lr=1.0, schedule=schedule, warmup_steps=4, steps=14) for step in range(14)]


def test_warm_up_is_linear_and_reaches_the_rate() -> None:
    assert rates("constant")[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates("constant")[-1] == 1.0


def test_linear_and_cosine_fall_towards_zero() -> None:
    linear, cosine = rates("linear"), rates("cosine")
    assert linear[4] == cosine[4] == 1.0
    assert linear[9] == pytest.approx(0.5)
    assert cosine[9] == pytest.approx(0.5)
    assert linear[-1] == pytest.approx(0.1)
    assert 0 < cosine[-1] < 0.03


def test_a_bfloat16_model_takes_steps_too_small_for_its_own_precision() -> None:
    weight = Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimiser = Optimiser([weight], Learner(lr=1e-4), steps=100)
    for step in range(60):
        weight.grad = torch.ones_like(weight)
        optimiser.accumulate()
        optimiser.step(step)
    assert weight.detach().float()[0, 0].item() == pytest.approx(1 - 60e-4, abs=4e-3)
    assert optimiser.masters[0][0, 0].item() == pytest.approx(1 - 60e-4, abs=1e-5)


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    weight = Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimiser = Optimiser([weight], Learner(), steps=1)
    for value in (256.0, 1.0):  # 257 has no bfloat16
        weight.grad = torch.full_like(weight, value)
        optimiser.accumulate()
    assert optimiser.masters[0].grad.tolist() == [257.0, 257.0]  # type: ignore[union-attr]


def test_a_gradient_that_is_not_finite_is_refused_and_moves_nothing() -> None:
    weight = Parameter(torch.ones(2))
    optimiser = Optimiser([weight], Learner(), steps=1)
    weight.grad = torch.tensor([1.0, torch.nan])
    with pytest.raises(UserError, match="not finite"):
        optimiser.step(0)
    assert weight.tolist() == [1.0, 1.0]


def test_the_norm_before_clipping_is_reported() -> None:
    weight = Parameter(torch.ones(2))
    optimiser = Optimiser([weight], Learner(grad_clip=1.0), steps=1)
    weight.grad = torch.tensor([30.0, 40.0])
    assert optimiser.step(0)[0] == pytest.approx(50.0)


def test_state_of_another_dtype_is_refused() -> None:
    small = Optimiser([Parameter(torch.ones(2, dtype=torch.bfloat16))], Learner(), steps=1)
    full = Optimiser([Parameter(torch.ones(2))], Learner(), steps=1)
    with pytest.raises(UserError, match="dtype"):
        full.load(small.state())
    with pytest.raises(UserError, match="dtype"):
        small.load(full.state())
