"""`dr_grpo` (arXiv 2503.20783): PPO-clip per token, a response's sum divided by a constant instead of its length.

So a wrong answer does not cost less per token by being long. The advantages that belong to it are not divided by the
group's standard deviation (`learner.advantage = "mean"`, taken unless set).
"""

from services.learner.losses import grpo
from services.learner.losses.denominators import per_constant
from services.learner.losses.rule import Loss

LOSS = Loss("dr_grpo", per_constant, grpo.objective, grpo.dead)
