"""`dapo`: no buffer; a fresh group without a spread of rewards is dropped, and another prompt is asked in its place.

The step waits until b groups with a spread are there. Their cost is counted in groups_generated and groups_filtered;
when replay.max_refill_rounds x b groups had to be dropped in one step, the run ends with a sentence.
The published form besides: learner.loss = "dapo" (token mean; clip .2 and .28 are its range), learner.kl = 0, and the
overlong penalty of reward.overlong_tokens.
Bound: every group of a batch has a response of positive and one of negative advantage; b of them in every batch.
Source: Yu et al., arXiv 2503.14476, dynamic sampling.
"""

from services.replay.policies import Policy
from services.replay.rules import has_spread, no_slots, nothing

POLICY = Policy(name="dapo", order=no_slots, accepts=None, keeps=nothing, trains=has_spread, refills=True)
