"""The client of /retrieve: queries of concurrent rollouts travel in one request; retries are counted and bounded.

A latency of the settings is waited by each rollout for itself, behind its answer: requests leave when they would have
left anyway, and nobody waits for another one's delay.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import httpx

from services.actor.observation import Document
from shared.config import Config, without_password
from shared.latency import Latency
from shared.retrieval import INDEX_HEADER

log = logging.getLogger("headrace")
WINDOW_S = 0.002  # how long a query waits for company
MAX_MERGED = 128  # queries of one request
MAX_ANSWER_BYTES = 64 * 2**20  # of one answer, unpacked
_BACKOFF_S, _BACKOFF_CAP_S = 0.1, 2.0
_FOR_NOW = {408, 425, 429, 500, 502, 503, 504}  # statuses of a server that has the route, or of one before it


class RetrievalFailed(Exception):
    """The retriever did not answer within its retries, or refused the query; the rollout is masked, never scored 0.

    `status`: with which it refused; 0 where it did not answer.
    """

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


class RetrievalClient:
    """`search` from any number of tasks. Use `async with`."""

    def __init__(
        self,
        url: str,
        *,
        topk: int,
        timeout_s: float,
        retries: int,
        max_query_chars: int = 2000,
        on_retry: Callable[[], None] = lambda: None,
        on_failure: Callable[[], None] = lambda: None,
        on_answer: Callable[[float], None] = lambda seconds: None,
        latency: Latency | None = None,
    ) -> None:
        """Told of: a request that is sent again, one that is given up, and one that was answered after so long."""
        self.url = url.rstrip("/")
        self.topk, self.retries, self.max_query_chars = topk, retries, max_query_chars
        self.on_retry, self.on_failure, self.on_answer, self.latency = on_retry, on_failure, on_answer, latency
        self.timeout_s = timeout_s
        self._client = httpx.AsyncClient(timeout=timeout_s, trust_env=False)
        self._waiting: list[tuple[str, asyncio.Future[list[Document]]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._index: str | None = None

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        on_retry: Callable[[], None] = lambda: None,
        on_failure: Callable[[], None] = lambda: None,
        on_answer: Callable[[float], None] = lambda seconds: None,
        latency: Latency | None = None,
    ) -> "RetrievalClient":
        """The client of the retriever that a configuration names."""
        return cls(
            config.env.url,
            topk=config.env.topk,
            timeout_s=config.env.timeout_s,
            retries=config.env.retries,
            max_query_chars=config.search.max_query_chars,
            on_retry=on_retry,
            on_failure=on_failure,
            on_answer=on_answer,
            latency=latency,
        )

    async def __aenter__(self) -> "RetrievalClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._sending:
            task.cancel()
        await self._client.aclose()

    async def search(self, query: str, seed: int = 0) -> list[Document]:
        """The passages for one query, best first. `seed` decides what the latency is. Raises RetrievalFailed."""
        answer: asyncio.Future[list[Document]] = asyncio.get_running_loop().create_future()
        self._waiting.append((query[: self.max_query_chars], answer))
        if len(self._waiting) >= MAX_MERGED:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._flush)
        found = await answer
        if self.latency is not None:
            await asyncio.sleep(self.latency.draw(seed))
        return found

    async def index(self) -> str:
        """The fingerprint of the retriever's index, asked again after it was away. Raises RetrievalFailed.

        Where its answers say theirs it is that of the last one: behind an address several may take turns.
        """
        index = self._index
        if index is None:
            index = self._index = await self._retry(self._ask_index)
        return index

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        if batch:
            task = asyncio.ensure_future(self._answer(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _answer(self, batch: list[tuple[str, asyncio.Future[list[Document]]]]) -> None:
        batch = [(query, answer) for query, answer in batch if not answer.done()]
        if not batch:
            return
        try:
            found = await self._retry(lambda: self._post([query for query, _ in batch]))
        except _Refused as error:
            if len(batch) > 1:  # one bad query must not fail the others
                await asyncio.gather(*(self._answer([item]) for item in batch))
                return
            _fail(batch, RetrievalFailed(str(error), error.status))
        except RetrievalFailed as error:
            _fail(batch, error)
        except BaseException:
            _fail(
                batch, RetrievalFailed(f"the request to {without_password(self.url)} was given up")
            )  # nobody may wait for it
            raise
        else:
            for (_, answer), documents in zip(batch, found, strict=True):
                if not answer.done():
                    answer.set_result(documents)

    async def _retry(self, call: Callable[[], Any]) -> Any:
        last = ""
        for attempt in range(self.retries + 1):
            asked = time.monotonic()
            try:
                async with asyncio.timeout(self.timeout_s):  # of the whole answer: httpx's is for each piece of it
                    answer = await call()
            except _Refused:
                raise
            except (httpx.HTTPError, TimeoutError, _BadAnswer) as error:
                last = self._spoken(error)
                if isinstance(error, httpx.TransportError | TimeoutError):
                    self._index = None  # what comes back may serve another index
            else:
                self.on_answer(time.monotonic() - asked)
                return answer
            if attempt < self.retries:
                self.on_retry()
                await asyncio.sleep(min(_BACKOFF_S * 2**attempt, _BACKOFF_CAP_S))
        self.on_failure()
        tries = "1 try" if self.retries == 0 else f"{self.retries + 1} tries"
        raise RetrievalFailed(f"{without_password(self.url)} gave no result in {tries} ({last})")

    def _spoken(self, error: Exception) -> str:
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return f"no answer within env.timeout_s = {self.timeout_s:g} s"
        return str(error) if isinstance(error, _BadAnswer) else f"{type(error).__name__}: {error}"

    async def _post(self, queries: list[str]) -> list[list[Document]]:
        request = {"queries": queries, "topk": self.topk, "return_scores": True}
        status, body, headers = await self._read("POST", "/retrieve", json=request)
        if 400 <= status < 500:
            text = body[:200].decode(errors="replace")
            raise _Refused(f"{without_password(self.url)} refused the query: {status} {text}", status)
        index = _printable(headers.get(INDEX_HEADER, ""))
        found = documents_of(_json(status, body), len(queries), index)
        if index and index != self._index:
            if self._index:
                log.warning("%s answers from index %s, no more %s", without_password(self.url), index, self._index)
            self._index = index
        return [documents[: self.topk] for documents in found]

    async def _ask_index(self) -> str:
        status, body, _ = await self._read("GET", "/health")
        if status in _FOR_NOW:
            raise _BadAnswer(f"status {status}")
        try:
            answer = _json(status, body)
        except _BadAnswer:
            return ""
        if not isinstance(answer, dict) or not isinstance(answer.get("index"), str):
            return ""  # another retriever, which has no fingerprint
        return _printable(answer["index"])

    async def _read(self, method: str, path: str, **more: Any) -> tuple[int, bytes, httpx.Headers]:
        """Status, body and headers of an answer that is not larger than any honest one."""
        body = bytearray()
        async with self._client.stream(method, self.url + path, **more) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise _BadAnswer(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return response.status_code, bytes(body), response.headers


class _BadAnswer(Exception):
    """A status or a body that is not an answer; worth another try."""


class _Refused(Exception):
    """A 4xx: the same request would be refused again."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


def documents_of(answer: Any, queries: int, index: str = "") -> list[list[Document]]:
    """Read both shapes of an answer: {"document", "score"} pairs or bare documents. Raises _BadAnswer for any other."""
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, list) or len(result) != queries:
        raise _BadAnswer(f"no list of {queries} results in the answer")
    return [[_document(hit, index) for hit in _list(hits)] for hits in result]


def _list(hits: Any) -> list[Any]:
    if not isinstance(hits, list):
        raise _BadAnswer("the hits of a query are not a list")
    return hits


def _document(hit: Any, index: str) -> Document:
    document = hit.get("document", hit) if isinstance(hit, dict) else None
    if not isinstance(document, dict):
        raise _BadAnswer("a hit is not a document")
    title, text = document.get("title"), document.get("text")
    if title is None or text is None:
        contents = document.get("contents")
        if not isinstance(contents, str):
            raise _BadAnswer("a document without contents")
        title, _, text = contents.partition("\n")
        title = title.strip('"')
    return Document(_printable(document.get("id", "")), _printable(title), _printable(text), index)


def _printable(value: Any) -> str:
    """As text that can be encoded: JSON can name half of a surrogate pair, which no message and no tokenizer takes."""
    if not isinstance(value, str | int | float):
        raise _BadAnswer("a document whose parts are not text")
    return str(value).encode("utf-8", "replace").decode()


def _json(status: int, body: bytes) -> Any:
    if status != 200:
        raise _BadAnswer(f"status {status}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _BadAnswer("the answer is not JSON") from None


def _fail(batch: list[tuple[str, asyncio.Future[list[Document]]]], error: RetrievalFailed) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(error)
