"""Dotted settings on the command line (`--learner.lr 2e-6`), told apart from a command's own options."""

from collections.abc import Sequence


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words for the command's parser, overrides for `shared.config.load`).

    An override is `--section.key value` or `--section.key=value`; a negative number is a value.
    """
    own: list[str] = []
    overrides: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not is_override(word):
            own.append(word)
            continue
        overrides.append(word)
        if "=" not in word and rest and not rest[0].startswith("--"):
            overrides.append(rest.pop(0))
    return own, overrides


def is_override(word: str) -> bool:
    """Whether a word names a dotted setting."""
    return word.startswith("--") and "." in word.partition("=")[0]


def is_set(overrides: Sequence[str], key: str) -> bool:
    """Whether this dotted key is among the overrides."""
    return any(word == f"--{key}" or word.startswith(f"--{key}=") for word in overrides)
