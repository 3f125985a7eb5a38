"""The grammar of a search rollout: which action a turn's sampled text takes. Environment text is never parsed."""

import re
from dataclasses import dataclass
from typing import Literal

STOP_STRINGS = ("</search>", "</answer>")
HINT = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"<\s*/?\s*(?:think|search|information|answer)\s*>", re.IGNORECASE)


@dataclass(frozen=True)
class Action:
    """What the policy did; `content` is the query or the answer, stripped."""

    kind: Literal["search", "answer", "invalid"]
    content: str = ""


def parse_action(turn: str) -> Action:
    """The first complete action in a turn's sampled text. A search for nothing is invalid."""
    found = _ACTION.search(turn)
    if found is None:
        return Action("invalid")
    content = found.group(2).strip()
    if found.group(1) == "answer":
        return Action("answer", content)
    return Action("search", content) if content else Action("invalid")


def neutralise(text: str, special_tokens: tuple[str, ...] = ()) -> str:
    """Text that can speak neither the grammar nor the tokenizer's control tokens: such pieces lose their brackets.

    Repeated until nothing changes, since taking a piece out can join what is around it into another.
    """
    while True:
        before = text
        text = _TAG.sub(lambda tag: tag.group().strip("<> \t\n"), text)
        for token in special_tokens:
            text = text.replace(token, "")
        if text == before:
            return text
