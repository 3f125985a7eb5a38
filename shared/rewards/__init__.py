"""Rewards: sampled text in, `Scored` out. Pure functions; only math reaches for a worker process."""

from shared.rewards.answers import targets
from shared.rewards.score import Scored, fingerprint, score

__all__ = ["Scored", "fingerprint", "score", "targets"]
