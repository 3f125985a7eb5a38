"""`naive` (the paper's control): the newest groups, newest first, without a scan.

Bound: a replayed group was stored after every stored group that is not replayed. While each step stores at least K
groups, every replayed group is one step old.
Source: arXiv 2609.03941; method.md section 5 on what the paper's "naive" means.
"""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.policies import Moment, Policy


def order(buffer: Buffer, n: int, moment: Moment) -> NDArray[np.intp]:
    """By insertion, last first."""
    return buffer.oldest_first()[::-1][:n]


POLICY = Policy(name="naive", order=order, accepts=None)
