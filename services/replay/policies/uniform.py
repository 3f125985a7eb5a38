"""`uniform`: groups drawn uniformly without replacement, without a scan.

Bound: a step replays exactly min(K, stored) groups, each stored group with the same probability.
Source: the textbook's experience replay, over groups; this project's control.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """The first n of the permutation that the seed gives, so that a restarted step draws the same."""
    return np.random.default_rng(moment.seed).permutation(buffer.oldest_first())[:n]


POLICY = Policy(name="uniform", order=order, accepts=None)
