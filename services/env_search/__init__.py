"""Answers /retrieve over a memory-mapped index."""
