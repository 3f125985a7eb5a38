"""`cispo` (arXiv 2506.13585): the clipped ratio is only a weight of the log-probability; no token loses its gradient.

Mean over all tokens of the batch. The paper sets no bound below and does not name the one above; 5, which is 1 + the
`clip_high` taken unless set, is the usual one of arXiv 2510.13786. The loss's value has no meaning of its own.
"""

import torch
from torch import Tensor

from services.learner.losses.denominators import per_token
from services.learner.losses.rule import Clip, Loss, Tokens
from services.learner.losses.terms import ratio


def objective(tokens: Tokens, clip: Clip) -> Tensor:
    """clip(rho) A log p, the first two without gradient."""
    weight = ratio(tokens.logp, tokens.l_old).clamp(1.0 - clip.low, 1.0 + clip.high).detach()
    return weight * tokens.advantages * tokens.logp


def dead(tokens: Tokens, clip: Clip) -> Tensor:
    """Nowhere."""
    return torch.zeros_like(tokens.logp, dtype=torch.bool)


LOSS = Loss("cispo", per_token, objective, dead)
