"""Finding the answer in sampled text, and the acceptable answers in whatever form a data set keeps them."""

from collections.abc import Iterable, Mapping
from typing import Any

OPEN, CLOSE = "<answer>", "</answer>"
BOXED = ("\\boxed", "\\fbox")
GSM8K_MARK = "####"


def last_answer(text: str) -> str | None:
    """What stands in the last closed <answer>; None where there is none. A tag opened twice counts from the
    second.
    """
    start = text.rfind(OPEN, 0, max(text.rfind(CLOSE), 0))
    return text[start + len(OPEN) : text.find(CLOSE, start)].strip() if start >= 0 else None


def last_boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...}, braces balanced (\boxed 7 without braces: the next word). None: no box.

    A box that is never closed was cut off by the length limit and does not count; the one before it is not taken
    instead, since it was not the final answer.
    """
    start = max(text.rfind(box) for box in BOXED)
    if start < 0:
        return None
    rest = text[start:].removeprefix(BOXED[0]).removeprefix(BOXED[1]).lstrip()
    if not rest.startswith("{"):
        word = rest.split(maxsplit=1)
        return word[0].strip("$.,") if word else None
    depth = 0
    for at, character in enumerate(rest):
        escaped = at > 0 and rest[at - 1] == "\\"
        if character in "{}" and not escaped:
            depth += 1 if character == "{" else -1
            if depth == 0:
                return rest[1:at].strip()
    return None


def after_mark(text: str) -> str | None:
    """What stands on the line after the last #### (GSM8K); None where there is no mark."""
    _, mark, rest = text.rpartition(GSM8K_MARK)
    if not mark:
        return None
    first_line = rest.strip().partition("\n")[0]
    return first_line.strip() or None


def targets(ground_truth: Any) -> list[str]:
    """The acceptable answers as strings, in order, without repeats.

    Takes a string, a number, any sequence or numpy array of those, {"target": ...} as in the verl and Search-R1
    files, or None. A GSM8K solution becomes what follows its ####. Empty strings are no answers.
    """
    found = [_target(value) for value in _flatten(ground_truth)]
    return list(dict.fromkeys(target for target in found if target))


def _flatten(value: Any) -> Iterable[Any]:
    if value is None:
        return
    if isinstance(value, Mapping):
        yield from _flatten(value.get("target", value.get("ground_truth")))
    elif isinstance(value, str):
        yield value
    elif hasattr(value, "tolist"):  # numpy arrays and scalars, without importing numpy
        yield from _flatten(value.tolist())
    elif isinstance(value, Iterable):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


def _target(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    return (after_mark(text) or "") if GSM8K_MARK in text else text
