"""PPO's clipped objective of any ratio (arXiv 1707.06347), dual clip (arXiv 1912.09729); where no gradient is left."""

import torch
from torch import Tensor

from services.learner.losses.rule import Clip


def clipped(ratio: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A), and with a dual clip at least dual x A where A < 0."""
    bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    objective = torch.minimum(ratio * advantages, bounded * advantages)
    if clip.dual:
        objective = torch.where(advantages < 0, torch.maximum(objective, clip.dual * advantages), objective)
    return objective


def lost(ratio: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """Where the gradient of `clipped` is zero though A is not."""
    up, down = advantages > 0, advantages < 0
    dead = (up & (ratio > 1.0 + clip.high)) | (down & (ratio < 1.0 - clip.low))
    return dead | (down & (ratio > clip.dual)) if clip.dual else dead
