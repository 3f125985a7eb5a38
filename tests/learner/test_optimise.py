"""The schedule, clipping, float32 masters under a bfloat16 model, masters elsewhere, moments in 8 bits."""

import io
import math
import sys
from typing import Any

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_with_a_gradient_that_is_not_finite_is_left_out_as_if_it_had_not_been(dtype: torch.dtype) -> None:
    straight, disturbed = weights(dtype), weights(dtype)
    moved(straight, range(4))
    state = moved(disturbed, range(2)).state()
    optimiser = Optimiser(disturbed, Learner.model_validate({"lr": 1e-2, "weight_decay": 0.01}), steps=100)
    optimiser.load(state)
    for value in (torch.nan, torch.inf):
        disturbed[0].grad = torch.full_like(disturbed[0], value)
        optimiser.accumulate()
        norm, _ = optimiser.step(2)
        assert not math.isfinite(norm)
        assert all(m.grad is None for m in optimiser.masters)
    moved(disturbed, range(2, 4), optimiser.state())
    assert all(torch.equal(a, b) for a, b in zip(straight, disturbed, strict=True))


def test_too_many_gradients_in_a_row_that_are_not_finite_end_the_run() -> None:
    weight = Parameter(torch.ones(2))
    optimiser = Optimiser([weight], Learner(max_bad_gradients=2), steps=10)

    def step(number: int, value: float) -> None:
        weight.grad = torch.tensor([1.0, value])
        optimiser.step(number)

    for number, value in enumerate([torch.nan, torch.nan, 1.0, torch.nan, torch.nan]):
        step(number, value)
    assert torch.isfinite(weight).all()
    with pytest.raises(UserError, match="3 updates in a row, the last in step 5, were not finite"):
        step(5, torch.nan)


def test_the_norm_before_clipping_is_reported() -> None:
    weight = Parameter(torch.ones(2))
    optimiser = Optimiser([weight], Learner(grad_clip=1.0), steps=1)
    weight.grad = torch.tensor([30.0, 40.0])
    assert optimiser.step(0)[0] == pytest.approx(50.0)


def moved(parameters: list[Parameter], steps: range, state: dict[str, Any] | None = None, **settings: Any) -> Optimiser:
    """After steps of gradients that are the same for all, two micro-batches each."""
    optimiser = Optimiser(parameters, Learner.model_validate({"lr": 1e-2, "weight_decay": 0.01} | settings), steps=100)
    if state is not None:
        optimiser.load(state)
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for _ in range(2):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator).to(p.dtype) + (p.grad if p.grad is not None else 0)
            optimiser.accumulate()
        optimiser.step(step)
    return optimiser


def weights(dtype: torch.dtype) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((96, 96), (16,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_masters_move_the_weights_to_the_same_bits(dtype: torch.dtype) -> None:
    here, there = weights(dtype), weights(dtype)
    moved(here, range(5))
    optimiser = moved(there, range(5), offload=True)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert all(m is not p and m.device.type == "cpu" for m, p in zip(optimiser.masters, there, strict=True))
    assert all(p.grad is None for p in there)


def test_a_run_goes_on_with_offloading_and_without() -> None:
    for first, then in ((False, True), (True, False)):
        straight, halved = weights(torch.float32), weights(torch.float32)
        moved(straight, range(6))
        state = moved(halved, range(3), offload=first).state()
        moved(halved, range(3, 6), state, offload=then)
        assert all(torch.equal(a, b) for a, b in zip(straight, halved, strict=True))


def test_a_run_goes_on_with_the_decay_and_betas_that_are_set_now() -> None:
    changed = {"weight_decay": 0.5, "beta1": 0.5, "beta2": 0.75}
    state = moved(weights(torch.float32), range(3)).state()
    optimiser = moved(weights(torch.float32), range(0), state, **changed)
    found = [(group["weight_decay"], tuple(group["betas"])) for group in optimiser.adamw.param_groups]
    assert found == [(0.5, (0.5, 0.75)), (0.0, (0.5, 0.75))], "norms and biases do not decay"


@pytest.mark.slow
@pytest.mark.parametrize("offload", [False, True])
def test_moments_of_8_bits_move_the_weights_nearly_as_whole_ones_do(offload: bool) -> None:
    pytest.importorskip("bitsandbytes")
    start, whole, small = (weights(torch.bfloat16) for _ in range(3))
    moved(whole, range(20))
    optimiser = moved(small, range(20), optimizer="adamw8bit", offload=offload)
    ways = [b.detach().float() - a.detach().float() for a, b in zip(start, whole, strict=True)]
    for a, b, way in zip(whole, small, ways, strict=True):
        assert (a - b).detach().float().norm() < 0.05 * way.norm()
    bytes_of = {k: v.dtype.itemsize for k, v in optimiser.adamw.state[optimiser.masters[0]].items() if k == "state1"}
    assert bytes_of == {"state1": 1}


@pytest.mark.slow
def test_moments_of_8_bits_are_resumed_to_the_bit() -> None:
    pytest.importorskip("bitsandbytes")
    straight, halved = weights(torch.bfloat16), weights(torch.bfloat16)
    moved(straight, range(6), optimizer="adamw8bit")
    file = io.BytesIO()
    torch.save(moved(halved, range(3), optimizer="adamw8bit").state(), file)
    file.seek(0)
    moved(halved, range(3, 6), torch.load(file, weights_only=True), optimizer="adamw8bit")
    assert all(torch.equal(a, b) for a, b in zip(straight, halved, strict=True))


def test_moments_of_8_bits_without_their_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim.adamw", None)
    with pytest.raises(UserError, match="pip install bitsandbytes"):
        Optimiser(weights(torch.float32), Learner(optimizer="adamw8bit"), steps=1)


def test_state_of_another_optimiser_is_refused() -> None:
    optimiser = Optimiser(weights(torch.float32), Learner(), steps=1)
    with pytest.raises(UserError, match="'adamw8bit', set is 'adamw'"):
        optimiser.load(optimiser.state() | {"kind": "adamw8bit"})


def test_state_of_another_dtype_is_refused() -> None:
    small = Optimiser([Parameter(torch.ones(2, dtype=torch.bfloat16))], Learner(), steps=1)
    full = Optimiser([Parameter(torch.ones(2))], Learner(), steps=1)
    with pytest.raises(UserError, match="dtype"):
        full.load(small.state())
    with pytest.raises(UserError, match="dtype"):
        small.load(full.state())
