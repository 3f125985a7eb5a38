"""Weights as files: checkpoints, published versions, room on the disk for both."""
