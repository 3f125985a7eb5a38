"""Pieces that all losses share: ratios, factors that correct for who sampled a token, the KL term. All float[T]."""

import torch
from torch import Tensor

# exp(20) = 5e8 is far outside every clip range; without it an overflow meets the clip's zero gradient and makes a NaN
MAX_LOG_RATIO = 20.0


def ratio(logp: Tensor, l_old: Tensor) -> Tensor:
    """exp(logp - l_old)."""
    return (logp - l_old).clamp(max=MAX_LOG_RATIO).exp()


def importance_weights(l_ref: Tensor, l_gen: Tensor, cap: float) -> Tensor:
    """min(exp(l_ref - l_gen), cap), no gradient: corrects engine mismatch and lag (docs/method.md, section 5).

    Both are frozen with the group, so the weight is the same in every use. cap 0: ones.
    """
    return truncated(l_ref, l_gen, cap) if cap else torch.ones_like(l_ref)


def truncated(l_to: Tensor, l_from: Tensor, cap: float) -> Tensor:
    """min(exp(l_to - l_from), cap), no gradient."""
    return ratio(l_to, l_from).detach().clamp(max=cap)


def kl_k3(logp: Tensor, l_frozen: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || frozen model) per token: e^x - 1 - x, x = l_frozen - logp."""
    x = (l_frozen - logp).clamp(max=MAX_LOG_RATIO)
    return torch.expm1(x) - x
