"""Rewards: sampled text in, `Scored` out. Pure functions; only math reaches for a worker process."""

from shared.rewards.answers import targets
from shared.rewards.classes import answer_classes
from shared.rewards.score import Kind, Scored, answer_of, fingerprint, score

__all__ = ["Kind", "Scored", "answer_classes", "answer_of", "fingerprint", "score", "targets"]
