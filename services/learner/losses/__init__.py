"""The losses on flat tokens (docs/method.md, section 3): no padding, no I/O, any float type. One file per loss.

weights    how much a token counts          (denominators)
factors    who sampled it                   (terms)
objective  what is maximised at it          (one file per loss; shaping, for replayed rollouts)
"""

import torch
from torch import Tensor

from services.learner.losses import cispo, dapo, dr_grpo, grpo, gspo
from services.learner.losses.rule import Clip, Loss, Tokens
from services.learner.losses.shaping import shaped
from services.learner.losses.terms import MAX_LOG_RATIO, importance_weights, kl_k3, ratio, truncated

__all__ = [
    "LOSSES",
    "MAX_LOG_RATIO",
    "Clip",
    "Loss",
    "Tokens",
    "dead",
    "importance_weights",
    "kl_k3",
    "ratio",
    "truncated",
    "value",
]

LOSSES = {loss.name: loss for loss in (grpo.LOSS, dapo.LOSS, dr_grpo.LOSS, gspo.LOSS, cispo.LOSS)}


def value(
    loss: Loss, tokens: Tokens, weights: Tensor, factors: Tensor, clip: Clip, replayed: Tensor, shaping: float
) -> Tensor:
    """What is minimised, a scalar: -sum(weights x factors x objective). All tensors have one item per token.

    replayed: bool[T], the tokens that `shaping`, if it is not 0, takes out of the clip.
    """
    objective = loss.objective(tokens, clip)
    if shaping:
        objective = torch.where(replayed, shaped(tokens, shaping), objective)
    return -(weights * factors * objective).sum()


def dead(loss: Loss, tokens: Tokens, clip: Clip, replayed: Tensor, shaping: float) -> Tensor:
    """Where a clip makes the gradient of `value` zero though the advantage is not, bool[T]."""
    lost = loss.dead(tokens, clip)
    return lost & ~replayed if shaping else lost
