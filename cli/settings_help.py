"""Every setting with its default and its meaning, read from the place where they are defined."""

import inspect
import io
import tokenize
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

from services.replay.policies import names as policy_names
from shared import settings
from shared.config import Config

MUST_BE_SET = {("model", "path"), ("data", "train")}


def print_settings() -> None:
    """Print all sections as a TOML file that loads: what must be set stands there empty, every default as a comment.

    A default that was written would count as set, and keep a loss or a policy from bringing its paper's settings.
    """
    comments = _comments()
    print("# Every setting with its default: take the # in front of one away to change it. On the command line it is")
    print("# --section.key VALUE, in the environment HEADRACE_SECTION__KEY.")
    for name, section in sections():
        print(f"\n# {(inspect.getdoc(section) or '').splitlines()[0]}\n[{name}]")
        for line in _section_lines(name, section, comments):
            print(line)


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """(name, class) of every section."""
    for name, field in Config.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        yield name, field.annotation


def _section_lines(name: str, section: type[BaseModel], comments: dict[str, str]) -> list[str]:
    lines = []
    for key, field in section.model_fields.items():
        default = str(field.default).lower() if isinstance(field.default, bool) else _toml(field.default)
        meaning = "; ".join(
            filter(None, (_choices(name, key, field.annotation), comments[f"{section.__name__}.{key}"]))
        )
        line = f"{key} = {default}" if (name, key) in MUST_BE_SET else f"# {key} = {default}"
        lines.append(f"{line:<42}  # {meaning}")
    return lines


def _choices(section: str, key: str, annotation: object) -> str:
    """What the setting may be, where that is a list of names."""
    names = get_args(annotation) if get_origin(annotation) is Literal else ()
    if (section, key) == ("replay", "policy"):
        names = policy_names()
    return " | ".join(map(str, names))


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _comments() -> dict[str, str]:
    """Class.field -> the comment at the end of its line in shared/settings.py."""
    found: dict[str, str] = {}
    current, field = "", ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(settings)).readline):
        words = token.line.split()
        if token.type == tokenize.NAME and token.string == "class":
            current = words[1].partition("(")[0]
        elif token.type == tokenize.NAME and token.start[1] == 4 and token.line.lstrip().startswith(f"{token.string}:"):
            field = token.string
        elif token.type == tokenize.COMMENT and token.start[1] > 4:
            found[f"{current}.{field}"] = token.string.lstrip("# ")
    return found
