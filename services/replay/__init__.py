"""Decides what to roll out, keep, scan and train on. Never decodes a token array."""
