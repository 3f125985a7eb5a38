"""What is wrong with a value, in plain words: the sentences of the validation library speak to programmers."""

from collections.abc import Mapping
from typing import Any

# pydantic's type of an error -> the end of a sentence, with the error's context in braces
_WORDS = {
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be below {lt}",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text in quotes",
    "literal_error": "must be {expected}",
    # the one pattern there is: that of a name of a run or a study, which is a folder too
    "string_pattern_mismatch": (
        "must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit"
    ),
    "missing": "is missing",
    "model_type": "must be a section of settings, [section] with a line each, and not a value",
}


def wrong(key: str, error: Mapping[str, Any]) -> str:
    """`'learner.lr' must be above 0`, of one entry of ValidationError.errors()."""
    return f"'{key}'{' ' if error['type'] in _WORDS else ': '}{words(error)}"


def words(error: Mapping[str, Any]) -> str:
    """`must be above 0`."""
    if known := _WORDS.get(error["type"]):
        return known.format(**{name: _shown(bound) for name, bound in error.get("ctx", {}).items()})
    return f"{error['msg'][0].lower()}{error['msg'][1:]}"


def _shown(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound
