"""`naive` (the paper's control): the newest groups, newest first, without a scan.

Bound: a replayed group was stored after every stored group that is not replayed. While each step stores at least K
groups, every replayed group is one step old.
Source: arXiv 2609.03941; docs/method.md section 4 on what the paper's "naive" means.
"""

from services.replay.policies import Policy
from services.replay.rules import newest_first

POLICY = Policy(name="naive", order=newest_first, accepts=None)
