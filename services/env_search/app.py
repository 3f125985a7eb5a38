"""The HTTP side: POST /retrieve, GET /health, GET /metrics.

The event loop only parses requests and hands work over: searching runs in the batcher's thread, and reading
passages from the mapped corpus (which may wait for a disk) in the default pool. Every wait has a deadline.
Errors are {"detail": sentence}.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import ClientDisconnect

from services.env_search.batcher import Batcher, Hung, Overloaded
from services.env_search.cache import HitCache, Hits, normalise_query
from services.env_search.corpus import Corpus
from services.env_search.index import OpenIndex
from services.env_search.metrics import Metrics
from services.env_search.requests import (
    Crowded,
    Intake,
    Limits,
    Refused,
    RetrieveRequest,
    Search,
    parse_request,
    read_body,
)
from shared.metrics import watch_loop_lag
from shared.retrieval import INDEX_HEADER

log = logging.getLogger(__name__)

DEADLINE_S = 30.0
MAX_WAITING = 20_000  # queries; more than that are not searched within the deadline


class Retriever:
    """Answers parsed requests: cache, then batcher, then the corpus."""

    def __init__(
        self,
        index: OpenIndex,
        *,
        cache_entries: int = 10_000,
        batch_window_ms: float = 2.0,
        max_batch: int = 256,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.index = index
        self.metrics = Metrics(index.manifest.backend, len(index.corpus))
        self.deadline_s = deadline_s
        self._cache = HitCache(cache_entries)
        self.batcher = Batcher(
            index.backend,
            window_s=batch_window_ms / 1000,
            max_batch=max_batch,
            max_waiting=MAX_WAITING,
            limit_s=deadline_s,  # whoever asked for it has given up then
            on_batch=self.metrics.batch.observe,
        )
        self.metrics.searching.set_function(lambda: self.batcher.searching_s)

    async def retrieve(self, search: Search) -> bytes:
        """The JSON body that answers `search`. Raises Overloaded, Hung, or the backend's error; the caller sets
        the deadline.
        """
        hits = await asyncio.gather(*(self._find(query, search.topk) for query in search.queries))
        return await asyncio.to_thread(render, self.index.corpus, hits, search.return_scores)

    async def _find(self, query: str, topk: int) -> Hits:
        key = (normalise_query(query), topk)
        self.metrics.queries.inc()
        if not key[0]:
            return Hits((), ())
        hits = self._cache.get(key)
        if hits is not None:
            self.metrics.cache_hits.inc()
            return hits
        hits = await self.batcher.find(key)
        self._cache.put(key, hits)
        return hits


def render(corpus: Corpus, hits: list[Hits], return_scores: bool) -> bytes:
    """{"result": [[{"document": ..., "score": ...}]]}, or the bare documents without scores; UTF-8 JSON."""
    result: list[list[Any]] = []
    for found in hits:
        documents = [corpus[number] for number in found.documents]
        if return_scores:
            result.append(
                [
                    {"document": document, "score": score}
                    for document, score in zip(documents, found.scores, strict=True)
                ]
            )
        else:
            result.append(documents)
    # A lone surrogate can be written in JSON but not in UTF-8.
    return json.dumps({"result": result}, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", errors="replace"
    )


def create_app(retriever: Retriever, limits: Limits) -> FastAPI:
    """The application around an open index."""
    metrics = retriever.metrics
    ready, intake = asyncio.Event(), Intake()
    headers = {INDEX_HEADER: retriever.index.manifest.fingerprint}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        lag = watch_loop_lag("env_search", metrics.registry)
        tasks = [asyncio.create_task(retriever.batcher.run()), asyncio.create_task(lag)]
        ready.set()
        yield
        ready.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(title="Headrace env_search", lifespan=lifespan)

    @app.post(
        "/retrieve",
        openapi_extra={
            "requestBody": {"content": {"application/json": {"schema": RetrieveRequest.model_json_schema()}}}
        },
    )
    async def retrieve(request: Request) -> Response:
        started = time.monotonic()
        try:
            async with asyncio.timeout(retriever.deadline_s):
                with intake.request() as take:
                    search = parse_request(await read_body(request.stream(), limits, take), limits)
                    body = await retriever.retrieve(search)
        except Refused as error:
            return _error(metrics, 422, "refused", str(error))
        except (Overloaded, Crowded):
            return _error(metrics, 503, "overloaded", "Too many queries are waiting: try again in a moment.")
        except Hung:
            return _error(metrics, 503, "hung", _hangs(retriever))
        except ClientDisconnect:
            return Response(status_code=400)
        except TimeoutError:
            return _error(metrics, 503, "deadline", f"The request took longer than {retriever.deadline_s:g} s.")
        except Exception:
            log.exception("a search failed")
            return _error(metrics, 500, "failed", "The search failed: the log of env_search says why.")
        metrics.latency.observe(time.monotonic() - started)
        return Response(body, media_type="application/json", headers=headers)

    @app.get("/health")
    async def health(response: Response) -> dict[str, Any]:
        hangs = retriever.batcher.hangs
        response.status_code = 503 if hangs else 200
        return {
            "ready": ready.is_set() and not hangs,
            "backend": retriever.index.manifest.backend,
            "documents": len(retriever.index.corpus),
            "index": retriever.index.manifest.fingerprint,
        } | ({"detail": _hangs(retriever)} if hangs else {})

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _hangs(retriever: Retriever) -> str:
    seconds = retriever.batcher.searching_s
    return f"A search has not ended for {seconds:.0f} s, and nothing is searched until it does: see the index's disk."


def _error(metrics: Metrics, status: int, kind: str, sentence: str) -> Response:
    metrics.errors.labels(kind).inc()
    return Response(json.dumps({"detail": sentence}), status, media_type="application/json")
