"""`dapo` (arXiv 2503.14476): PPO-clip per token, mean over all tokens of the batch: a response counts by its length.

The rest of DAPO are settings: `clip_high` .28 above `clip_low` .2 (taken unless set), no KL (the default), the overlong
penalty (`reward.overlong_tokens`), groups without spread replaced (`replay.policy = "dapo"`).
"""

from services.learner.losses import grpo
from services.learner.losses.denominators import per_token
from services.learner.losses.rule import Loss

LOSS = Loss("dapo", per_token, grpo.objective, grpo.dead)
