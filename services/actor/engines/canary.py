"""Whether new weights are those that the learner announced: its log-probabilities of a few sequences, made again here.

In float32 two engines agree to 1e-5 nats. In bfloat16 they do not: another attention kernel or another batch moves
single tokens by more than half a nat, so the largest difference says nothing. Two that do not hang on single tokens are
held against limits, over the tokens of all sequences: the mean of |d|, and the |d| that nine in ten tokens stay below.

Measured over 128 tokens at a time, with the models of the examples (2 and 3 layers) and SmolLM2-135M (30):

    |d| in nats                        float32: mean  highest     bfloat16: mean  nine in ten  highest
    right, another kernel and batch    at most 3e-6   2e-5        .004 to .051    at most .12  .69
    one matrix wrong, the mildest      .044                       .044            .7
        of SmolLM2                     .24                        .24             .7
    two layers changed places          at least .28               at least .31    .8
    the output layer of another model  at least 7                 at least 7      9
    every weight off by 1e-5           at least 2e-4              not seen
    every weight off by 1e-3           at least .02               .021 to .083    .18

A version that is a step too old differs by the learning rate, 1e-6, in every weight: 3e-5 nats in the mean, which no
limit shows; there the digest alone tells it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.actor.engines.engine import CanaryRefused
from shared.config import Config
from shared.messages import CanarySequence

FP32_MEAN, BF16_MEAN = 1e-4, 0.12  # nats
HIGH_SHARE, HIGH_OVER_MEAN = 0.9, 4.0  # right weights have their ninth tenth at 2 to 3.3 times the mean


@dataclass(frozen=True)
class Mismatch:
    """|d| over all tokens of a canary, in nats; nan where a log-probability is not finite."""

    mean: float
    high: float  # what nine in ten tokens stay below
    worst: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} nats in the mean, {self.high:.3g} for nine in ten tokens, {self.worst:.3g} at most"


def tolerance(config: Config, dtype: str, canary: Sequence[CanarySequence]) -> float:
    """How far a canary's log-probabilities may be off in the mean, in nats, where the engine computes in `dtype`.

    The coarser type decides: a learner on a GPU and actors on processors have two.
    """
    exact = {dtype, *(sequence.dtype for sequence in canary)} == {"float32"}
    return config.actor.canary_tolerance or (FP32_MEAN if exact else BF16_MEAN)


def mismatch(canary: Sequence[CanarySequence], scored: Sequence[Sequence[float]]) -> Mismatch | None:
    """How far the log-probabilities are off; None without a token. Raises CanaryRefused where one is missing."""
    differences: list[float] = []
    for number, (sequence, ours) in enumerate(zip(canary, scored, strict=True)):
        if len(ours) != len(sequence.logprobs):
            raise CanaryRefused(f"canary {number}: {len(ours)} log-probabilities for {len(sequence.logprobs)}")
        differences += [abs(a - b) for a, b in zip(ours, sequence.logprobs, strict=True)]
    if not differences:
        return None
    if not all(map(math.isfinite, differences)):
        return Mismatch(math.nan, math.nan, math.nan)
    differences.sort()
    high = differences[math.ceil(HIGH_SHARE * len(differences)) - 1]
    return Mismatch(sum(differences) / len(differences), high, differences[-1])


def check_canary(canary: Sequence[CanarySequence], scored: Sequence[Sequence[float]], limit: float) -> None:
    """Raise CanaryRefused when recomputed log-probabilities are further than `limit` from the learner's in the mean,
    or one in ten of them further than HIGH_OVER_MEAN times that.
    """
    off = mismatch(canary, scored)
    if off is not None and not (off.mean <= limit and off.high <= HIGH_OVER_MEAN * limit):
        raise CanaryRefused(
            f"the canary's log-probabilities are off by {off}; allowed are {limit:g} and {HIGH_OVER_MEAN * limit:g}"
        )
