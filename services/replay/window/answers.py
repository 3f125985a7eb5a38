"""How the replay window answers: headers that keep a page to itself, tags, sentences, and a bound on what runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Header, HTTPException, Response
from redis.exceptions import NoPermissionError, RedisError

AT_ONCE, WAITING = 4, 64  # requests that are answered, and that may wait for it
REDIS_S = 5.0

# Rollouts are a stranger's text: nothing but our own files may run, and nothing may be sent elsewhere.
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match")]


def answer(data: bytes, tag: str = "", media_type: str = "application/json") -> Response:
    """The bytes with all headers, and a tag by which to ask whether they have changed."""
    return Response(data, media_type=media_type, headers=HEADERS | ({"ETag": tag} if tag else {}))


def unchanged(tag: str) -> Response:
    """Status 304."""
    return Response(status_code=304, headers=HEADERS | {"ETag": tag})


@asynccontextmanager
async def redis_answers() -> AsyncIterator[None]:
    """What Redis refuses or leaves unanswered becomes a sentence with status 403 or 503."""
    try:
        async with asyncio.timeout(REDIS_S):
            yield
    except NoPermissionError:
        raise HTTPException(403, "Redis does not let replay read this: its user has no right to the key.") from None
    except (RedisError, TimeoutError):
        raise HTTPException(503, "Redis does not answer.", {"Retry-After": "2"}) from None


class RequestLimit:
    """A dependency of every route: AT_ONCE requests run, WAITING more wait, the rest is refused with status 503."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = WAITING) -> None:
        self._free, self._waiting, self._limit = asyncio.Semaphore(at_once), 0, waiting

    async def __call__(self) -> AsyncIterator[None]:
        if self._free.locked() and self._waiting >= self._limit:
            raise HTTPException(503, "too many pages ask at once: try again.", {"Retry-After": "1"})
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()
