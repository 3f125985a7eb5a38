"""What /retrieve accepts, and what it refuses with which sentence.

Two callers are served with one form: Search-R1 sends "queries", SkyRL a single "query"; both get {"result":
[hits per query]}.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

# JSON writes one character in at most 12 bytes (a surrogate pair as two escapes of 6).
BYTES_PER_CHARACTER = 12
INTAKE_BYTES = 256 * 2**20


class Refused(Exception):
    """The request cannot be answered; the text is one sentence for its sender."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one request."""

    topk: int = 3  # where the request names none
    max_topk: int = 50
    max_queries: int = 512
    max_query_chars: int = 2000

    @property
    def max_body_bytes(self) -> int:
        """No request within the other limits is larger."""
        return self.max_queries * (self.max_query_chars * BYTES_PER_CHARACTER + 8) + 4096


class RetrieveRequest(BaseModel):
    """The body of POST /retrieve. Unknown keys are ignored, as the servers it stands in for do."""

    queries: list[str] | None = None
    query: str | None = None
    topk: int | None = None
    return_scores: bool = False


@dataclass(frozen=True)
class Search:
    """A request within the limits."""

    queries: list[str]
    topk: int
    return_scores: bool


class Crowded(Exception):
    """The requests under way hold as much memory as they may together."""


class Intake:
    """What the bodies of all requests under way take, from their first byte to their answer."""

    def __init__(self, most: int = INTAKE_BYTES) -> None:
        self._most, self._held = most, 0

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Yields the function that counts bytes of one request; it raises Crowded."""
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if self._held + count > self._most:
                raise Crowded
            mine += count
            self._held += count

        try:
            yield take
        finally:
            self._held -= mine


async def read_body(
    chunks: AsyncIterator[bytes], limits: Limits, take: Callable[[int], None] = lambda count: None
) -> bytes:
    """The whole body; Refused as soon as it is larger than any allowed request. `take` is told of each piece."""
    body = bytearray()
    async for chunk in chunks:
        take(len(chunk))
        body += chunk
        if len(body) > limits.max_body_bytes:
            raise Refused(f"The request is larger than {limits.max_body_bytes} bytes: send fewer or shorter queries.")
    return bytes(body)


def parse_request(body: bytes, limits: Limits) -> Search:
    """Read and bound one request; Refused with a sentence that names the field, its value and the limit."""
    try:
        request = RetrieveRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{field or 'The body'}: {first['msg']}.") from None
    if request.queries is not None and request.query is not None:
        raise Refused('Send "queries" or "query", not both.')
    if request.queries is None and request.query is None:
        raise Refused('Send "queries" (a list of strings) or "query" (a string).')
    queries = [request.query] if request.query is not None else request.queries or []
    topk = limits.topk if request.topk is None else request.topk
    if not 1 <= topk <= limits.max_topk:
        raise Refused(f"topk is {topk}: it must be from 1 to {limits.max_topk}.")
    if len(queries) > limits.max_queries:
        raise Refused(f"{len(queries)} queries in one request: at most {limits.max_queries} are answered.")
    for number, query in enumerate(queries):
        if len(query) > limits.max_query_chars:
            raise Refused(
                f"queries.{number} has {len(query)} characters: at most {limits.max_query_chars} are searched."
            )
    return Search(queries, topk, request.return_scores)
