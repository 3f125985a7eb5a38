"""Exact match and F1 on normalised text, as SQuAD and the open-domain sets that follow it define them.

Normalisation (Rajpurkar et al. 2016, the official evaluation): lower case, drop ASCII punctuation, drop the
words a, an and the, collapse white space. Letters beyond ASCII and their accents are kept, so "Beyoncé" is not
"Beyonce". A target of which nothing is left ("A", "The", "!") would equal every answer of which nothing is left; it is
compared in lower case as it is written.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """The form in which answers are compared."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(answer: str, targets: Sequence[str]) -> bool:
    """Whether the normalised answer equals any target. An answer of nothing but white space is never right."""
    if not answer.strip():
        return False
    return any(given == wanted for given, wanted in _forms(answer, targets))


def f1(answer: str, targets: Sequence[str]) -> float:
    """The best token F1 of the answer over the targets, in [0, 1]."""
    if not answer.strip():
        return 0.0
    return max((_f1(given, wanted) for given, wanted in _forms(answer, targets)), default=0.0)


def _forms(answer: str, targets: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The words of the answer and of each target by which the two are compared; one piece where no word is left."""
    given = normalise(answer).split()
    for target in targets:
        wanted = normalise(target).split()
        yield (given, wanted) if wanted else ([answer.strip().lower()], [target.strip().lower()])


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))
