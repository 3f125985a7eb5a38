"""The grammar of a search rollout: which action a turn's sampled text takes. Environment text is never parsed."""

import re
from dataclasses import dataclass
from typing import Literal

STOP_STRINGS = ("</search>", "</answer>")
HINT = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_KINDS: tuple[Literal["search"], Literal["answer"]] = ("search", "answer")
_PASSES = 4
_TAG = re.compile(r"<\s*/?\s*(?:think|search|information|answer)\s*>", re.IGNORECASE)


@dataclass(frozen=True)
class Action:
    """What the policy did; `content` is the query or the answer, stripped."""

    kind: Literal["search", "answer", "invalid"]
    content: str = ""


def parse_action(turn: str) -> Action:
    """The first complete action in a turn's sampled text. A search for nothing is invalid. Linear in its length."""
    found: list[tuple[int, int, Literal["search", "answer"]]] = []
    for kind in _KINDS:
        start = turn.find(f"<{kind}>")
        end = turn.find(f"</{kind}>", start)
        if 0 <= start < end:
            found.append((start + len(kind) + 2, end, kind))
    if not found:
        return Action("invalid")
    start, end, kind = min(found)
    content = turn[start:end].strip()
    return Action(kind, content) if content or kind == "answer" else Action("invalid")


def neutralise(text: str, special_tokens: tuple[str, ...] = ()) -> str:
    """Text that can speak neither the grammar nor the tokenizer's control tokens: such pieces lose their brackets.

    Taking a piece out can join what is around it into another. A text that goes on like that is meant to: it loses
    every character that such a piece could begin with, so that a hostile document costs no more time than another.
    """
    for _ in range(_PASSES):
        before = text
        text = _TAG.sub(lambda tag: tag.group().strip("<> \t\n"), text)
        for token in special_tokens:
            text = text.replace(token, "")
        if text == before:
            return text
    return text.translate({ord(piece[0]): None for piece in ("<", *special_tokens)})
