"""Prompt sources: verl / Search-R1 parquet, JSON lines, or a hub name, as one lazily indexed sequence of
Examples.
"""

from shared.prompts.example import QUESTION, Example, read_row
from shared.prompts.order import order
from shared.prompts.sources import PromptSource, open_prompts

__all__ = ["QUESTION", "Example", "PromptSource", "open_prompts", "order", "read_row"]
