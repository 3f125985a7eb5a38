"""DAPO's soft penalty for overlong responses (arXiv 2503.14476, section 3.4), by the tokens a rollout had left.

    tokens left      >= reward.overlong_tokens     ...     0, or cut off
    penalty          0                  rising evenly      reward.overlong_penalty

In a single turn this is the published form with L_max the turn's budget and L_cache = overlong_tokens. With several
turns the last one counts, and the whole transcript: whichever limit was nearer. It never touches `correct`, so neither
what counts as mixed nor any evaluation knows of it.
"""

from dataclasses import replace

from services.actor.rollout import Budget, Rollout
from shared.rewards import Scored
from shared.settings import Reward


def tokens_left(rollout: Rollout, prompt_tokens: int, budget: Budget) -> int:
    """How many more the policy could have sampled before a limit cut it off; at least 0."""
    whole = budget.max_tokens - prompt_tokens - len(rollout.ids)
    start, end = rollout.turns[-1] if rollout.turns else (0, 0)
    return max(0, min(whole, budget.max_turn_tokens - (end - start)))


def penalised(scored: Scored, left: int, settings: Reward) -> Scored:
    """The score with the penalty taken from its reward; as it is where nothing was scored or enough was left."""
    short = settings.overlong_tokens - left
    if scored.reward is None or short <= 0:
        return scored
    penalty = settings.overlong_penalty * short / settings.overlong_tokens
    return replace(scored, reward=scored.reward - penalty, parts=scored.parts | {"overlong": -penalty})
