"""What a search puts into the context: documents between <information> tags, cut to a token budget, always closed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.actor.tags import neutralise

CHARACTERS_PER_TOKEN = 64  # more than any tokenizer packs into a token of prose; what is behind cannot be shown
OPEN, CLOSE = "\n\n<information>", "</information>\n\n"


@dataclass(frozen=True)
class Document:
    """A retrieved passage."""

    id: str
    title: str
    text: str
    index: str = ""  # the fingerprint of the one it is from, where the retriever says it


def observation(
    documents: Sequence[Document],
    encode: Callable[[str], list[int]],
    limit: int,
    special_tokens: tuple[str, ...] = (),
) -> list[int] | None:
    """Ids of the tagged documents, at most `limit` of them; None when not even the empty tags fit.

    Whole documents are kept from the best one on; the first that does not fit is cut short, if some of it fits.
    """
    most = CHARACTERS_PER_TOKEN * max(limit, 1)
    parts = [_parts(i, d, most, special_tokens) for i, d in enumerate(documents, 1)]
    lines = [head + text + "\n" for head, text in parts]
    for kept in range(len(lines), -1, -1):
        ids = encode(OPEN + "".join(lines[:kept]) + CLOSE)
        if len(ids) <= limit:
            cut = _with_part("".join(lines[:kept]), *parts[kept], encode, limit) if kept < len(lines) else None
            return cut or ids
    return None


def _with_part(whole: str, head: str, text: str, encode: Callable[[str], list[int]], limit: int) -> list[int] | None:
    low, high, best = 0, len(text), None  # the head is kept whole
    while low < high:
        middle = (low + high + 1) // 2
        ids = encode(OPEN + whole + (head + text[:middle]).rstrip() + "\n" + CLOSE)
        if len(ids) <= limit:
            low, best = middle, ids
        else:
            high = middle - 1
    return best


def _parts(number: int, document: Document, most: int, special_tokens: tuple[str, ...]) -> tuple[str, str]:
    """What stands in front of a document's text, and the text."""
    title, text = (neutralise(part[:most], special_tokens) for part in (document.title, document.text))
    return f"Doc {number}(Title: {title}) ", text
