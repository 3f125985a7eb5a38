"""`gspo` (arXiv 2507.18071): one ratio per response, the geometric mean of its tokens' ratios, clipped as a whole.

The published range is narrow (3e-4 below, 4e-4 above), since a mean of many log-ratios moves little. A token's factor
(importance weight) multiplies its share, so a response is multiplied by the mean of its tokens' factors.
"""

import torch
from torch import Tensor

from services.learner.losses.clipping import clipped, lost
from services.learner.losses.denominators import per_response
from services.learner.losses.rule import Clip, Loss, Tokens
from services.learner.losses.terms import MAX_LOG_RATIO


def objective(tokens: Tokens, clip: Clip) -> Tensor:
    """min(s A, clip(s) A), the same at each token of a response, s = exp(mean(logp - l_old))."""
    return clipped(_sequence_ratio(tokens), tokens.advantages, clip)


def dead(tokens: Tokens, clip: Clip) -> Tensor:
    """All tokens of a response whose ratio is outside."""
    return lost(_sequence_ratio(tokens), tokens.advantages, clip)


def _sequence_ratio(tokens: Tokens) -> Tensor:
    """s of each token's response, float[T]."""
    d = tokens.logp - tokens.l_old
    lengths = torch.bincount(tokens.rollout)
    sums = torch.zeros(len(lengths), dtype=d.dtype, device=d.device).index_add(0, tokens.rollout, d)
    return (sums[tokens.rollout] / lengths[tokens.rollout]).clamp(max=MAX_LOG_RATIO).exp()


LOSS = Loss("gspo", per_response, objective, dead)
