"""`none`: plain GRPO. Nothing is stored, nothing is replayed.

Bound: the buffer is empty at every step.
Source: Shao et al., arXiv 2402.03300 (GRPO).
"""

from services.replay.policies import Policy
from services.replay.rules import no_slots, nothing

POLICY = Policy(name="none", order=no_slots, accepts=None, keeps=nothing)
