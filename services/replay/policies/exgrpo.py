"""`exgrpo`: a right answer of before in place of one of G new ones, for prompts of middling difficulty.

    stored      groups of prompts with 0 < k < G right answers; of them the right answers may be replayed
    retired     a prompt all of whose answers were right: what is stored of it leaves, it is not stored again
    asked       every step, replay.select prompts (0: as many as fresh ones, so that half of all prompts are replayed),
                without replacement: bucket k, by the prompt's latest group, with weight Normal(k; G/2, 1), a prompt
                within it uniformly. A prompt whose latest group had no right answer is not asked.
    joined      G - 1 new answers and one stored: of the prompt's right ones that of the lowest current entropy
    start       when the share of right answers in a step's fresh groups has reached .35

Entropy is estimated by the mean -log p of the stored tokens under the current weights. A group of G - 1 answers with
k right stands for bucket k G / (G - 1), rounded. The published form besides, taken with the loss grpo where nothing is
set: learner.replay_shaping = .1 (replayed tokens count w / (w + .1), unclipped). replay.tau is not asked.
What asking costs comes on top of b groups a step: groups_regenerated; compare at equal groups_generated.
Bound: a replayed answer is right, its prompt was solved by some and not all when it was stored and by not all since;
a batch replays one answer for each of its asked-again groups at most, and none before the start.
Source: Zhan et al., arXiv 2510.02245.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.kept import Kept
from services.replay.policies import Again, Moment, Policy
from services.replay.rules import mixed, whatever_was_measured
from shared.messages import GroupHeader

START = 0.35


def of_asked_prompts(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """What is stored of the prompts that are asked again, oldest first."""
    return buffer.of_prompts(moment.asked)[:n]


def rewards_of_right(header: GroupHeader, advantages: NDArray[np.float32]) -> list[float]:
    """The reward of each right response that has tokens to train on; 0 for the others."""
    scored = zip(header.rewards, header.correct, header.sampled_tokens, strict=True)
    return [float(r) if r is not None and right and tokens > 0 else 0.0 for r, right, tokens in scored]


def all_right(header: GroupHeader) -> bool:
    """Solved by all."""
    return header.right == len(header.scored)


def bucket(prompt: Kept, group_size: int) -> int:
    """k of G."""
    return round(prompt.right * group_size / prompt.scored)


def by_difficulty(kept: list[Kept], n: int, group_size: int, moment: Moment) -> list[Kept]:
    """n prompts by an exponential race: each bucket's weight is shared by those in it, and they draw no replacement."""
    buckets = np.array([bucket(prompt, group_size) for prompt in kept], np.int64)
    inside = np.bincount(buckets, minlength=1)[buckets] if kept else buckets
    log_weights = -0.5 * (buckets - group_size / 2) ** 2 - np.log(inside)
    rings = np.log(np.random.default_rng(moment.seed).exponential(size=len(kept))) - log_weights
    return [kept[i] for i in np.argsort(rings, kind="stable")[:n]]


POLICY = Policy(
    name="exgrpo",
    order=of_asked_prompts,
    accepts=whatever_was_measured,
    responses=rewards_of_right,
    again=Again(keeps=mixed, picks=by_difficulty, retires=all_right, every=1, starts_at=START, joined=True),
)
