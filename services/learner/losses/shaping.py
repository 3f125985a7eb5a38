"""Replayed rollouts as ExGRPO uses them (arXiv 2510.02245): ratio / (ratio + c) in place of a clipped ratio."""

from torch import Tensor

from services.learner.losses.rule import Tokens
from services.learner.losses.terms import ratio


def shaped(tokens: Tokens, c: float) -> Tensor:
    """rho / (rho + c) x A, float[T]: no clip; the gradient, c rho / (rho + c)^2 A, is largest at rho = c.

    So a token that has become likely is left alone and one that has become unlikely is pulled at.
    """
    rho = ratio(tokens.logp, tokens.l_old)
    return rho / (rho + c) * tokens.advantages
