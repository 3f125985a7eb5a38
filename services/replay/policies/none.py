"""`none`: plain GRPO. Nothing is stored, nothing is replayed.

Bound: the buffer is empty at every step.
"""

from services.replay.policies import Policy
from services.replay.rules import no_slots, nothing

POLICY = Policy(name="none", order=no_slots, accepts=None, keeps=nothing)
