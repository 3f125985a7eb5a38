"""`grpo` (arXiv 2402.03300): PPO-clip per token, mean over a response, then over its group, then over groups."""

from torch import Tensor

from services.learner.losses.clipping import clipped, lost
from services.learner.losses.denominators import per_response
from services.learner.losses.rule import Clip, Loss, Tokens
from services.learner.losses.terms import ratio


def objective(tokens: Tokens, clip: Clip) -> Tensor:
    """min(rho A, clip(rho) A), rho = exp(logp - l_old), per token."""
    return clipped(ratio(tokens.logp, tokens.l_old), tokens.advantages, clip)


def dead(tokens: Tokens, clip: Clip) -> Tensor:
    """Where the clip takes the token's gradient."""
    return lost(ratio(tokens.logp, tokens.l_old), tokens.advantages, clip)


LOSS = Loss("grpo", per_response, objective, dead)
