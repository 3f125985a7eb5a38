"""The tag grammar of a search rollout, checked on the sampled text alone.

    (<think> ... </think> <search> ... </search>)*  <think> ... </think> <answer> ... </answer>

Between elements only white space. <information> is the environment's: its text is not in what is checked, and a
policy that writes the tag itself breaks the grammar.
"""

import re
from dataclasses import dataclass

TAG = re.compile(r"<(/?)(think|search|information|answer)>")
FOLLOWS = {"": ("think",), "think": ("search", "answer"), "search": ("think",), "answer": ()}


@dataclass(frozen=True)
class Form:
    """Whether a transcript is well formed; if not, the first thing wrong with it."""

    ok: bool
    reason: str = ""
    searches: int = 0


def check_form(text: str) -> Form:
    """Walk the tags of `text`: `inside` is the open element, `last` the one closed before."""
    inside, last, at, searches = "", "", 0, 0
    for tag in TAG.finditer(text):
        closing, name = tag.group(1) == "/", tag.group(2)
        between = text[at : tag.start()].strip()
        at = tag.end()
        if name == "information":
            return Form(False, "<information> belongs to the environment", searches)
        if inside:
            if not closing or name != inside:
                return Form(False, f"{tag.group()} inside <{inside}>", searches)
            if inside != "think" and not between:
                return Form(False, f"<{inside}> is empty", searches)
            searches += name == "search"
            inside, last = "", name
            continue
        if between:
            return Form(False, f"text outside tags before {tag.group()}", searches)
        if closing:
            return Form(False, f"{tag.group()} closes nothing", searches)
        if name not in FOLLOWS[last]:
            return Form(False, f"<{name}> after {f'</{last}>' if last else 'the start'}", searches)
        inside = name
    if inside:
        return Form(False, f"<{inside}> is not closed", searches)
    if text[at:].strip():
        return Form(False, "text after the last tag", searches)
    if last != "answer":
        return Form(False, "no <answer> at the end", searches)
    return Form(True, "", searches)
