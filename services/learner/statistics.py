"""One statistics record per group, from flat token tensors (method.md, sections 2 and 6). Sums are taken in float64."""

import torch
from torch import Tensor

from services.learner.loss import MAX_LOG_RATIO, dead
from shared.messages import Record


def headroom(logp: Tensor, advantages: Tensor) -> float:
    """Mean over T of 1 - p where the advantage is positive, p where negative, 0 where zero. Both float[T].

    1 - p is taken as -expm1(log p), which keeps its digits when p is near 1.
    """
    lp = logp.float().clamp(max=0.0)
    h = torch.where(advantages > 0, -torch.expm1(lp), torch.where(advantages < 0, lp.exp(), torch.zeros_like(lp)))
    return h.double().mean().item()


def drift(logp: Tensor, l_ref: Tensor) -> float:
    """Mean over T of (log p - l_ref)^2."""
    return (logp.float() - l_ref.float()).double().square().mean().item()


def record(group: str, logp: Tensor, l_ref: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Record:
    """The record of one group. logp, l_ref, advantages: float[T], T >= 1, without gradient."""
    d = (logp.float() - l_ref.float()).double()
    p = logp.float().clamp(max=0.0).exp().double()
    positive, negative = advantages > 0, advantages < 0
    bounded = d.clamp(max=MAX_LOG_RATIO)
    return Record(
        id=group,
        tokens=len(d),
        tokens_positive=int(positive.sum()),
        tokens_negative=int(negative.sum()),
        mean_p_positive=_mean(p[positive]),
        mean_p_negative=_mean(p[negative]),
        headroom=headroom(logp, advantages),
        sum_d=d.sum().item(),
        sum_d2=d.square().sum().item(),
        max_abs_d=d.abs().max().item(),
        k3=(torch.expm1(bounded) - bounded).mean().item(),
        dead_share=dead(logp, l_ref, advantages, clip_low=clip_low, clip_high=clip_high).double().mean().item(),
        entropy=-logp.double().mean().item(),
    )


def _mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else 0.0
