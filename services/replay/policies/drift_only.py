"""`drift_only` (the paper's ablation): the newest groups first, used when Drift <= tau.

Bound: under the weights that the step begins with, every replayed group has Drift <= tau; a group that is passed over
for an older one has Drift > tau.
Source: arXiv 2609.03941, the ablation on MATH-500; that the order is by recency is this project's reading.
"""

from services.replay.policies import Policy
from services.replay.rules import newest_first

POLICY = Policy(name="drift_only", order=newest_first)
