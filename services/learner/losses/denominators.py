"""How much each token counts: float64[T] over the groups of one mini-batch.

rollout: int64[T], the rollout of each token; group_of_rollout: int64[R]. Rollouts and groups without trained tokens
are not counted. share: float64[groups], how much a group counts beside the others; None: all the same.
"""

import torch
from torch import Tensor


def per_response(rollout: Tensor, group_of_rollout: Tensor, constant: int = 0, share: Tensor | None = None) -> Tensor:
    """Mean over the tokens of a response, then over the responses of a group, then over the groups; adds up to 1."""
    lengths = torch.bincount(rollout, minlength=len(group_of_rollout))
    return _response_mean(rollout, group_of_rollout, lengths[rollout], share)


def per_token(rollout: Tensor, group_of_rollout: Tensor, constant: int = 0, share: Tensor | None = None) -> Tensor:
    """Mean over all tokens, whatever their response and group; adds up to 1."""
    return torch.full(rollout.shape, 1.0 / max(len(rollout), 1), dtype=torch.float64, device=rollout.device)


def per_constant(rollout: Tensor, group_of_rollout: Tensor, constant: int, share: Tensor | None = None) -> Tensor:
    """As `per_response`, but a response's sum is divided by `constant` tokens instead of its length."""
    assert constant > 0, "the constant denominator is the most tokens a response can have"
    return _response_mean(rollout, group_of_rollout, torch.full_like(rollout, constant), share)


def _response_mean(rollout: Tensor, group_of_rollout: Tensor, divisor: Tensor, share: Tensor | None) -> Tensor:
    """1 / (groups x responses of the token's group x divisor), groups counted by their share."""
    lengths = torch.bincount(rollout, minlength=len(group_of_rollout))
    responses = torch.bincount(group_of_rollout[lengths > 0])
    group = group_of_rollout[rollout]
    if share is None:
        return 1.0 / ((responses > 0).sum() * responses[group] * divisor).double()
    total = share[: len(responses)][responses > 0].sum()
    return share[group] / (total * responses[group] * divisor)
