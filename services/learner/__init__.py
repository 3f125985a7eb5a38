"""Scans stored groups, trains on mixed batches, checkpoints and publishes weights."""
