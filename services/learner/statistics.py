"""One record per group, from flat token tensors (docs/method.md, sections 2 and 5). Sums are taken in float64."""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from services.learner.groups.group import Group
from services.learner.losses import MAX_LOG_RATIO
from shared.messages import Record


@dataclass(frozen=True)
class Scores:
    """Which form of the two scores is measured: replay.drift and replay.headroom."""

    drift: str = "l2"
    headroom: str = "sign"


def headroom(logp: Tensor, advantages: Tensor, form: str = "sign") -> float:
    """Mean over T of 1 - p where the advantage is positive, p where negative, 0 where zero. Both float[T].

    With form "advantage" each token counts |A| times. 1 - p is taken as -expm1(log p), which keeps its digits when p
    is near 1.
    """
    lp = logp.float().clamp(max=0.0)
    h = torch.where(advantages > 0, -torch.expm1(lp), torch.where(advantages < 0, lp.exp(), torch.zeros_like(lp)))
    if form == "advantage":
        h = h * advantages.abs()
    return h.double().mean().item()


def drift(logp: Tensor, l_ref: Tensor, measure: str = "l2") -> float:
    """Mean over T of (log p - l_ref)^2, or of |log p - l_ref| with "l1"."""
    d = (logp.float() - l_ref.float()).double()
    return (d.abs() if measure == "l1" else d.square()).mean().item()


def record(
    group: str, logp: Tensor, l_ref: Tensor, advantages: Tensor, dead: Tensor, scores: Scores = Scores()
) -> Record:
    """The record of one group. logp, l_ref, advantages: float[T], T >= 1, without gradient; dead: bool[T]."""
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
        headroom=headroom(logp, advantages, scores.headroom),
        sum_d=d.sum().item(),
        sum_d2=d.square().sum().item(),
        sum_abs_d=d.abs().sum().item(),
        max_abs_d=d.abs().max().item(),
        k3=(torch.expm1(bounded) - bounded).mean().item(),
        dead_share=dead.double().mean().item(),
        entropy=-logp.double().mean().item(),
        measure=scores.drift,
    )


def with_entropies(record: Record, group: Group, logp: Tensor) -> Record:
    """The record with mean -log p of each rollout that has trained tokens. logp: float[T]."""
    sums = torch.zeros(len(group.rows), dtype=torch.float64).index_add_(0, group.rollout, -logp.double())
    means = sums / torch.bincount(group.rollout, minlength=len(group.rows))
    return msgspec.structs.replace(record, entropies=dict(zip(group.numbers, means.tolist(), strict=True)))


def _mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else 0.0
