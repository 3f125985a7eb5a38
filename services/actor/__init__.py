"""Generates groups of rollouts with vLLM or torch and swaps weights without stopping."""
