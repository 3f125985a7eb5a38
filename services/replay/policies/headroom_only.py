"""`headroom_only` (the paper's ablation): as `headroom_drift`, and every group that was scanned is used.

The scan stays, since it is what refreshes the cached Headroom: only the gate is off. With tau = infinity
`headroom_drift` is the same policy.
Bound: a step replays exactly K groups, or all that can be read; no group is passed over for one of lower cached
Headroom. Nothing bounds their Drift.
Source: arXiv 2609.03941, the ablation on MATH-500.
"""

from services.replay.policies import Policy
from services.replay.rules import by_headroom, whatever_was_measured

POLICY = Policy(name="headroom_only", order=by_headroom, accepts=whatever_was_measured)
