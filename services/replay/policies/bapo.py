"""`bapo`: fresh groups that are neither too hard nor too easy, hard prompts asked again, and young stored groups.

In units of right answers, G responses and a mean reward m (n of them scored: 1/n and (n-1)/n):

    fresh       trained when 1/G <= m <= (G-1)/G; the others take their place in the step's count untrained
    hard        m <= 1/G: the prompt is kept, and asked again every replay.ask_again_every steps, those that were asked
                longest ago first, at most replay.select (b / 2) a round; let go as soon as m > 1/G
    again       its groups join the next batch when 1/G <= m <= (G-1)/G; the others are dropped
    stored      trained groups with 1/4 <= m <= 3/4 that are at most 3 steps old, newest first, replay.select at most

What asking again costs comes on top of b groups a step: groups_regenerated. The paper's band for stored groups is not
in docs/method.md, which gives its rule in words; ours is the middle half.
The published form besides, taken with the loss grpo where nothing else is set: learner.tis_cap = 3, clip_low = .2,
clip_high = .28.
Bound: every replayed group is 1 to 3 steps old with a mean reward in the band; every fresh one that is trained has a
mean reward in [1/G, (G-1)/G]; a prompt is asked again at most once a round.
Source: Wan et al., arXiv 2602.20722.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.kept import Kept
from services.replay.policies import Again, Moment, Policy
from services.replay.rules import older_than
from shared.messages import GroupHeader

MAX_AGE = 3  # steps
BAND = (0.25, 0.75)
RESIDUE = 1e-6  # of sums of rewards in floating point


def solvable(header: GroupHeader) -> bool:
    """1/n <= mean reward <= (n-1)/n over the n scored responses."""
    return 1 - RESIDUE <= sum(header.scored) <= len(header.scored) - 1 + RESIDUE


def hard(header: GroupHeader) -> bool:
    """Mean reward at most 1/n."""
    return sum(header.scored) <= 1 + RESIDUE


def in_band(header: GroupHeader) -> bool:
    """Worth storing."""
    return BAND[0] - RESIDUE <= sum(header.scored) / len(header.scored) <= BAND[1] + RESIDUE


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The young ones, newest first."""
    slots = buffer.oldest_first()[::-1]
    return slots[moment.step - buffer.step[slots] <= MAX_AGE][:n]


def asked_longest_ago(kept: list[Kept], n: int, group_size: int, moment: Moment) -> list[Kept]:
    """Those never asked first, by the step they were found hard at; equals in the order of the data set."""
    return sorted(kept, key=lambda k: (k.asked, k.step))[:n]


POLICY = Policy(
    name="bapo",
    order=order,
    accepts=None,
    keeps=in_band,
    evicts=older_than(MAX_AGE),
    trains=solvable,
    again=Again(keeps=hard, picks=asked_longest_ago),
)
