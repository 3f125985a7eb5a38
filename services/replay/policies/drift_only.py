"""`drift_only` (the paper's ablation): the newest groups first, used when Drift <= tau.

Bound: under the weights that the step begins with, every replayed group has Drift <= tau; a group that is passed over
for an older one has Drift > tau.
Source: arXiv 2609.03941, the ablation on MATH-500; that the order is by recency is this project's reading.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """By insertion, last first."""
    return buffer.oldest_first()[::-1][:n]


POLICY = Policy(name="drift_only", order=order)
