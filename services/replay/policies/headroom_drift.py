"""`headroom_drift` (the paper's method): by cached Headroom, descending; used when Drift <= tau.

Bound: under the weights that the step begins with, every replayed group has Drift <= tau, hence a Headroom within
sqrt(tau) of its frozen one. No group is passed over for one of lower cached Headroom, but by the gate.
Source: arXiv 2609.03941, docs/method.md section 3.
"""

from services.replay.policies import Policy
from services.replay.rules import by_headroom

POLICY = Policy(name="headroom_drift", order=by_headroom)
