"""Both ends of /retrieve: what the service makes of any request, and what an actor makes of any answer."""

import asyncio
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import msgspec
from hypothesis import strategies as st

from services.actor.observation import observation
from services.actor.retrieval import _BadAnswer, _json, documents_of
from services.actor.tags import parse_action
from services.actor.text import Codec
from services.env_search.app import Retriever, create_app
from services.env_search.backend import IndexSpec
from services.env_search.index import build_index, open_index
from services.env_search.requests import Limits
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_INT, JSON, near, nearly_tags

POLICY = Path(__file__).resolve().parents[2] / "examples" / "atlas" / "policy"
QUERIES = 2

_RIGHT = st.fixed_dictionaries(
    {"queries": st.lists(nearly_tags().map(lambda text: text[:500]), max_size=4)},
    optional={"topk": st.integers(1, 50), "return_scores": st.booleans()},
)
_REQUESTS = _RIGHT | st.fixed_dictionaries(
    {},
    optional={
        "queries": st.lists(nearly_tags(), max_size=4) | JSON,
        "query": nearly_tags() | JSON,
        "topk": ANY_INT | JSON,
        "return_scores": st.booleans() | JSON,
        "x": JSON,
    },
)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


class Service:
    """An application with its batcher running, asked without a socket."""

    def __init__(self) -> None:
        folder = Path(mkdtemp(prefix="headrace-fuzz-"))
        rows = [{"id": str(i), "contents": f'"T{i}"\nwater wheel {i} search'} for i in range(20)]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        build_index(folder / "corpus.jsonl", folder / "index", IndexSpec())
        index = open_index(folder / "corpus.jsonl", folder / "index", IndexSpec())
        self.app = create_app(Retriever(index, batch_window_ms=0), Limits(max_queries=8, max_query_chars=500))
        self.loop = asyncio.new_event_loop()
        self._lifespan = self.app.router.lifespan_context(self.app)
        self.loop.run_until_complete(self._lifespan.__aenter__())
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://fuzz")

    def post(self, body: bytes) -> httpx.Response:
        return self.loop.run_until_complete(self.http.post("/retrieve", content=body))


@cache
def _service() -> Service:
    return Service()


def check_request(body: bytes) -> bool:
    """True for an answer: one list per query. Else a sentence with status 422."""
    answer = _service().post(body)
    if answer.status_code == 422:
        assert answer.json()["detail"].endswith((".", "!")) and len(answer.json()["detail"]) < 2000
        return False
    assert answer.status_code == 200, (answer.status_code, answer.text[:300])
    asked = json.loads(body)
    queries = asked["queries"] if asked.get("queries") is not None else [asked["query"]]
    assert len(answer.json()["result"]) == len(queries)
    return True


_DOCUMENTS = st.fixed_dictionaries(
    {}, optional={name: nearly_tags() | JSON for name in ("id", "title", "text", "contents")}
)
_HITS = st.lists(_DOCUMENTS | st.fixed_dictionaries({"document": _DOCUMENTS, "score": JSON}) | JSON, max_size=3)
_TEXTS = st.fixed_dictionaries({"id": st.text(max_size=3), "title": nearly_tags(), "text": nearly_tags()})
_RIGHT_HITS = st.lists(_TEXTS | st.fixed_dictionaries({"contents": nearly_tags()}), max_size=3)
_RIGHT_ANSWERS = st.fixed_dictionaries({"result": st.lists(_RIGHT_HITS, min_size=QUERIES, max_size=QUERIES)})
_ANSWERS = (
    _RIGHT_ANSWERS
    | st.fixed_dictionaries({"result": st.lists(_HITS, min_size=QUERIES, max_size=QUERIES) | JSON})
    | JSON
)
_DEEP = st.sampled_from([b"[" * 100_000, b'{"result":' * 50_000, b"<html>no</html>", b"", b"9" * 5000, b'"\\ud800"'])


@cache
def _codec() -> Codec:
    return Codec(POLICY)


def check_answer(body: bytes) -> bool:
    """True for an answer whose documents come into a context that still cannot act and that Redis can hold."""
    try:
        found = documents_of(_json(200, body), QUERIES)
    except _BadAnswer:
        return False
    codec = _codec()
    frame = set(codec.encode("<search></search><answer></answer><information></information>"))
    for documents in found:
        ids = observation(documents, codec.encode, 60, codec.special_tokens)
        assert ids is not None and len(ids) <= 60
        assert [i for i in ids if i in frame] == codec.encode("<information></information>")
        assert parse_action(codec.decode(ids)).kind == "invalid"
        msgspec.msgpack.encode([d.id for d in documents])
    return True


_REQUEST = b'{"queries": ["water", "wheel"], "topk": 3, "return_scores": true}'
_ANSWER = b'{"result": [[{"document": {"id": "1", "title": "t", "text": "x"}, "score": 1}], [{"contents": "a\\nb"}]]}'
TARGETS = [
    Target(
        "requests",
        near(_REQUESTS.map(_dump)) | st.binary(max_size=60),
        check_request,
        check_request,
        5,
        lambda: [_REQUEST],
        _service,
    ),
    Target("answers", near(_ANSWERS.map(_dump)) | _DEEP, check_answer, check_answer, 5, lambda: [_ANSWER], _codec),
]
