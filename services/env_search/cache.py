"""A least-recently-used cache of search results, keyed by (normalised query, topk).

Only document numbers and scores are kept, so 10,000 entries are a few megabytes whatever the passages weigh.
"""

import unicodedata
from collections import OrderedDict
from typing import NamedTuple

Key = tuple[str, int]


class Hits(NamedTuple):
    """Documents found for one query, best first."""

    documents: tuple[int, ...]
    scores: tuple[float, ...]


class HitCache:
    """At most `entries` results; 0 keeps none."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._kept: OrderedDict[Key, Hits] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Hits | None:
        hits = self._kept.get(key)
        if hits is not None:
            self._kept.move_to_end(key)
        return hits

    def put(self, key: Key, hits: Hits) -> None:
        self._kept[key] = hits
        self._kept.move_to_end(key)
        while len(self._kept) > self._entries:
            self._kept.popitem(last=False)


def normalise_query(query: str) -> str:
    """The query that is searched and cached: composed Unicode, runs of white space as one space. Case is kept."""
    return " ".join(unicodedata.normalize("NFC", query).split())
