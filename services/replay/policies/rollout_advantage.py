"""`rollout_advantage`: single rollouts drawn by |A| from groups at most 10 steps old, half as many as fresh ones.

Rollout i is drawn with probability proportional to (|A_i| + 1e-6)^.5, without replacement within a step, and never
where A_i = 0. It is trained with the advantage and the l_ref it was stored with, and weighs as much as a fresh rollout.
The published form besides, taken with the loss grpo where nothing else is set: learner.clip_low = .2, clip_high = .28,
dual_clip = 10; replay.select = b / 2, the default.
Bound: every replayed rollout is 1 to 10 steps old and has A != 0; none is in a batch twice; a step replays exactly
min(select x G, those there are).
Source: Yoo et al., arXiv 2606.04560.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy
from services.replay.rules import has_spread, no_slots, older_than
from shared.messages import GroupHeader

MAX_AGE = 10  # steps
EXPONENT, EPSILON = 0.5, 1e-6


def rollouts(buffer: Buffer, n: int, moment: Moment) -> dict[str, list[int]]:
    """Exponential clocks whose rates are the weights: the n that ring first are a draw without replacement.

    (The minimum of independent exponentials is i with probability rate_i / sum, and what is left is again such a race.)
    """
    slots = buffer.oldest_first()
    slots = slots[moment.step - buffer.step[slots] <= MAX_AGE]
    size = np.abs(buffer.responses[slots]).astype(np.float64)
    rate = np.where(size > 0, (size + EPSILON) ** EXPONENT, 0.0)
    waits = np.random.default_rng(moment.seed).exponential(size=rate.shape)
    rings = np.divide(waits, rate, out=np.full(rate.shape, np.inf), where=rate > 0).ravel()
    first = np.argsort(rings, kind="stable")[: min(n, np.count_nonzero(rate))]
    chosen: dict[str, list[int]] = {}
    for place in first.tolist():
        group, rollout = divmod(place, rate.shape[1])
        chosen.setdefault(buffer.ids(slots[group : group + 1])[0], []).append(rollout)
    return chosen


def advantages_of(header: GroupHeader, advantages: NDArray[np.float32]) -> list[float]:
    """A of each response that has a token to train on."""
    return np.where(np.array(header.sampled_tokens) > 0, advantages, 0.0).tolist()


POLICY = Policy(
    name="rollout_advantage",
    order=no_slots,
    accepts=None,
    keeps=has_spread,
    evicts=older_than(MAX_AGE),
    rollouts=rollouts,
    responses=advantages_of,
)
