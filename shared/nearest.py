"""What is said behind a word that is not known."""

import difflib
from collections.abc import Iterable

CUTOFF = 0.4  # lower, and words that share a few letters are taken for one another


def hint(word: str, known: Iterable[str], shown: Iterable[str] = (), cutoff: float = CUTOFF) -> str:
    """The end of a sentence: the known word nearest to this one, or what there is (`shown`, else all of `known`)."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"did you mean '{near[0]}'?" if near else f"there are {', '.join(shown or known)}."
