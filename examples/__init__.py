"""Runnable examples: one TOML per run, and the generated task of the demo."""
