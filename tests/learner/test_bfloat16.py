"""A step in bfloat16, as on a GPU, beside the same in float32: finite, and as near as the type allows."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from services.learner.model.lora import adapt
from services.learner.model.policy import load_policy
from services.learner.step import Trainer, scan, train_step
from shared.messages import Record
from shared.settings import Learner

CPU = torch.device("cpu")
LOSSES = ["grpo", "dapo", "dr_grpo", "gspo", "cispo"]


def stepped(trainer: Trainer, make_group: Any) -> tuple[torch.Tensor, list[Record], float]:
    """Two old and three new groups: (gradient before clipping, records of step and scan, loss)."""
    old = [make_group(f"old{i}", 50 + i, stored=0.05) for i in range(2)]
    new = [make_group(f"new{i}", i) for i in range(3)]
    taken: list[torch.Tensor] = []
    step = trainer.optimiser.step

    def watched(number: int) -> tuple[float, float]:
        taken.extend(m.grad.flatten().clone() for m in trainer.optimiser.masters if m.grad is not None)
        return step(number)

    trainer.optimiser.step = watched  # type: ignore[method-assign]
    records, totals = train_step(trainer, 0, old, new)
    return torch.cat(taken), [*records, *scan(trainer, old)], totals.losses[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_finite_and_near_the_one_in_float32(
    policy_dir: Path, make_group: Any, make_trainer: Any, loss: str
) -> None:
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        model, frozen = (load_policy(policy_dir, dtype, CPU) for _ in range(2))
        settings = {"kl": 0.1, "lr": 1e-4, "micro_tokens": 64, "denominator_tokens": 64}
        if loss == "gspo":  # its own range of 3e-4 is finer than bfloat16: which replayed rollouts it clips is chance
            settings |= {"clip_low": 0.2, "clip_high": 0.2}
        trainer = make_trainer(model, frozen=frozen, loss=loss, **settings)
        results.append(stepped(trainer, make_group))
        assert all(torch.isfinite(p).all() for p in model.parameters())
    (whole, expected, loss_whole), (rough, found, loss_rough) = results
    assert torch.isfinite(rough).all()
    assert (rough - whole).norm() < 0.1 * whole.norm()
    assert loss_rough == pytest.approx(loss_whole, abs=0.02)
    for a, b in zip(expected, found, strict=True):
        assert b.headroom == pytest.approx(a.headroom, abs=0.02)
        assert math.sqrt(b.drift) == pytest.approx(math.sqrt(a.drift), abs=0.05)


@pytest.mark.slow
def test_a_step_of_adapters_beside_a_bfloat16_base_is_near_the_one_in_float32(
    policy_dir: Path, make_group: Any, make_trainer: Any
) -> None:
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        model = load_policy(policy_dir, dtype, CPU)
        torch.manual_seed(0)
        adapt(model, Learner(lora_rank=4), policy_dir, str(policy_dir))
        gradients.append(stepped(make_trainer(model), make_group)[0])
    assert all(g.dtype == torch.float32 for g in gradients)
    assert (gradients[1] - gradients[0]).norm() < 0.1 * gradients[0].norm()
