"""The GRPO loss on flat tokens (method.md, section 3.5): no padding, no I/O, any float type.

Every token of a mini-batch has a fixed weight, so the loss is one weighted sum and may be summed over micro-batches in
any cut: the gradient is the same. T = tokens the policy sampled, R = rollouts, all over the groups of one mini-batch.
"""

import torch
from torch import Tensor

# exp(20) = 5e8 is far outside every clip range; without it an overflow meets the clip's zero gradient and makes a NaN
MAX_LOG_RATIO = 20.0


def token_weights(rollout: Tensor, group_of_rollout: Tensor) -> Tensor:
    """The share of each token in the loss, float64[T], adding up to 1.

    Mean over the tokens of a response, then over the responses of a group that have trained tokens, then over the
    groups actually there. rollout: int64[T], the rollout of each token; group_of_rollout: int64[R].
    """
    lengths = torch.bincount(rollout, minlength=len(group_of_rollout))
    responses = torch.bincount(group_of_rollout[lengths > 0])
    groups = (responses > 0).sum()
    return 1.0 / (groups * responses[group_of_rollout[rollout]] * lengths[rollout]).double()


def grpo(
    logp: Tensor,
    l_ref: Tensor,
    advantages: Tensor,
    weights: Tensor,
    importance: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """PPO-clip with ratio exp(logp - l_ref), weighted by token; a scalar. All tensors are float[T].

    advantages: of each token's response; weights: from `token_weights`; importance: from `importance_weights`. Only
    `logp` carries a gradient.
    """
    ratio = _ratio(logp, l_ref)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    return -(weights * importance * objective).sum()


def importance_weights(l_ref: Tensor, l_gen: Tensor, cap: float) -> Tensor:
    """min(exp(l_ref - l_gen), cap), float[T], no gradient: corrects engine mismatch and lag (method.md, section 6).

    cap 0: ones.
    """
    if cap == 0:
        return torch.ones_like(l_ref)
    return (l_ref - l_gen).detach().clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap)


def kl_k3(logp: Tensor, l_frozen: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || frozen model) per token, float[T]: e^x - 1 - x, x = l_frozen - logp."""
    x = (l_frozen - logp).clamp(max=MAX_LOG_RATIO)
    return torch.expm1(x) - x


def dead(logp: Tensor, l_ref: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Where the clip makes the gradient zero, bool[T]."""
    ratio = _ratio(logp, l_ref)
    return ((advantages > 0) & (ratio > 1.0 + clip_high)) | ((advantages < 0) & (ratio < 1.0 - clip_low))


def _ratio(logp: Tensor, l_ref: Tensor) -> Tensor:
    return (logp - l_ref).clamp(max=MAX_LOG_RATIO).exp()
