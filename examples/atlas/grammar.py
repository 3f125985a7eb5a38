"""The texts of an episode that are not the policy's own: tags, retrieved documents, the hint after an invalid turn.

They repeat what the search environment of the actor does, so that the policy is warm-started on exactly the form that
it will meet.
"""

import re

TAGS = tuple(f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/"))
HINT = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


def information(documents: list[tuple[str, str]]) -> str:
    """What the environment appends after a search. `documents` are (title, body), best first."""
    lines = "".join(f"Doc {i}(Title: {title}) {body}\n" for i, (title, body) in enumerate(documents, 1))
    return f"\n\n<information>{lines}</information>\n\n"


def action(turn: str) -> tuple[str, str]:
    """("search" or "answer", its content) of the first action in a turn's text, or ("", "") when it has none."""
    found = _ACTION.search(turn)
    return (found.group(1), found.group(2).strip()) if found else ("", "")
