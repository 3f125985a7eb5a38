"""What a loss is made of: how tokens are weighed, what is maximised at each, and where the gradient is lost."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Trained tokens, T in all; a rollout's are all there, so that a ratio per sequence can be taken."""

    logp: Tensor  # float[T] under the policy that is trained; alone carries a gradient
    l_old: (
        Tensor  # float[T], what the ratio is taken to: l_ref, or log p at the step's start where clipping is decoupled
    )
    advantages: Tensor  # float[T], of each token's rollout
    rollout: Tensor  # int64[T], the rollout of each token


@dataclass(frozen=True)
class Clip:
    """The ratio counts within [1 - low, 1 + high]; where the advantage is negative at most `dual`, if that is not 0."""

    low: float
    high: float
    dual: float = 0.0


@dataclass(frozen=True)
class Loss:
    """One loss. The whole is -sum(weights x factors x objective), factors from `terms`.

    weights(rollout int64[T], group_of_rollout int64[R], constant, share): float64[T], see `denominators`; over all the
        groups of a mini-batch, so that micro-batches may be cut anywhere between rollouts and give the same gradient.
    objective(tokens, clip): float[T].
    dead(tokens, clip): bool[T], where a clip makes the gradient zero though the advantage is not.
    """

    name: str
    weights: Callable[[Tensor, Tensor, int, Tensor | None], Tensor]
    objective: Callable[[Tokens, Clip], Tensor]
    dead: Callable[[Tokens, Clip], Tensor]
