"""POST /retrieve over real HTTP: the shapes its callers parse, its limits, its cache and its merging."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest

from services.env_search.backend import NO_DOCUMENT
from services.env_search.index import OpenIndex
from services.env_search.requests import Limits, Refused, parse_request

QUERIES = ["Where does the river mill stand?", "What turns water into light?", "weir"]


def expected(index: OpenIndex, queries: list[str], topk: int, scores: bool) -> bytes:
    """The body Search-R1's client reads, built from the backend and the corpus file."""
    rows = [json.loads(line) for line in index.corpus.path.read_text(encoding="utf-8").splitlines()]
    result = []
    for query in queries:
        ids, values = index.backend.search([query], topk)
        found = []
        for number, value in zip(ids[0].tolist(), values[0].tolist(), strict=True):
            if number == NO_DOCUMENT:
                continue
            title, text = rows[number]["contents"].split("\n")
            document = {**rows[number], "title": title.strip('"'), "text": text}
            found.append({"document": document, "score": value} if scores else document)
        result.append(found)
    return json.dumps({"result": result}, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("scores", [True, False])
def test_search_r1_requests_are_answered_byte_for_byte(small_index: OpenIndex, serve, scores: bool):
    client = serve(small_index)
    for count in range(4):
        body = {"queries": QUERIES[:count], "topk": 2, "return_scores": scores}
        reply = client.post("/retrieve", json=body)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-headrace-index"] == client.get("/health").json()["index"]
        assert reply.content == expected(small_index, QUERIES[:count], 2, scores)
        assert client.post("/retrieve", json=body).content == reply.content, "the answer from the cache differs"
        assert len(reply.json()["result"]) == count


def test_topk_null_takes_the_default_and_scores_are_off_unless_asked(small_index: OpenIndex, serve):
    client = serve(small_index, Limits(topk=1))
    for body in ({"queries": QUERIES, "topk": None}, {"queries": QUERIES}):
        result = client.post("/retrieve", json=body).json()["result"]
        assert [len(found) for found in result] == [1, 1, 1]
        assert set(result[0][0]) == {"id", "contents", "title", "text"}


def test_a_single_query_is_answered_as_a_list_of_one(small_index: OpenIndex, serve):
    client = serve(small_index)
    single = client.post("/retrieve", json={"query": QUERIES[0], "topk": 3, "return_scores": True})
    assert single.content == expected(small_index, QUERIES[:1], 3, True)


def test_fewer_documents_than_asked_for_are_all_there_are(small_index: OpenIndex, serve):
    client = serve(small_index)
    reply = client.post("/retrieve", json={"queries": ["water", "xyzzy", "", "   "], "topk": 50}).json()
    assert [len(found) for found in reply["result"]] == [2, 0, 0, 0]


def test_title_and_body_are_split(small_index: OpenIndex, serve):
    found = serve(small_index).post("/retrieve", json={"query": "rivière"}).json()["result"][0][0]
    assert (found["id"], found["title"]) == ("4", "Été")
    assert found["text"] == "L'été, la rivière est basse — 6½ pieds."


LIMITS = Limits(topk=3, max_topk=5, max_queries=2, max_query_chars=20)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"queries": ["a"], "topk": 6}, "topk is 6: it must be from 1 to 5."),
        ({"queries": ["a"], "topk": 0}, "topk is 0: it must be from 1 to 5."),
        ({"queries": ["a"], "topk": -1}, "topk is -1: it must be from 1 to 5."),
        ({"queries": ["a", "b", "c"]}, "3 queries in one request: at most 2 are answered."),
        ({"queries": ["a", "b" * 21]}, "queries.1 has 21 characters: at most 20 are searched."),
        ({"query": "b" * 21}, "queries.0 has 21 characters: at most 20 are searched."),
        ({"queries": ["a", 7]}, "queries.1: Input should be a valid string."),
        ({"queries": "a"}, "queries: Input should be a valid array."),
        ({"queries": ["a"], "topk": "many"}, "topk: Input should be a valid integer"),
        ({"topk": 3}, 'Send "queries" (a list of strings) or "query" (a string).'),
        ({"queries": ["a"], "query": "a"}, 'Send "queries" or "query", not both.'),
    ],
)
def test_a_request_over_a_limit_is_refused_with_one_sentence(body, sentence: str):
    with pytest.raises(Refused) as refused:
        parse_request(json.dumps(body).encode(), LIMITS)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_no_parameter_is_a_path_or_an_address(small_index: OpenIndex, serve):
    client = serve(small_index)
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {"/retrieve", "/health", "/metrics"}
    for path in described["paths"].values():
        assert not any("parameters" in operation for operation in path.values())
    body = described["paths"]["/retrieve"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"queries", "query", "topk", "return_scores"}
    plain = {"query": "weir", "return_scores": True}
    more = {"corpus": "/etc/passwd", "index": "../..", "url": "http://127.0.0.1:1/", "path": "/etc/passwd"}
    answer = client.post("/retrieve", json=plain | more, params=more)
    assert answer.content == client.post("/retrieve", json=plain).content
    for text in ("/etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/"):
        assert client.post("/retrieve", json={"query": text}).json() == {"result": [[]]}, "it is searched as words"
    for path in ("/..%2F..%2Fetc%2Fpasswd", "/retrieve/%2Fetc%2Fpasswd", "/health/..%2F.."):
        assert client.get(path).status_code == 404, path


def test_refusals_over_http_are_422_with_the_sentence(small_index: OpenIndex, serve):
    client = serve(small_index, LIMITS)
    for body, sentence in [
        (b'{"queries": ["a"], "topk": 6}', "topk is 6: it must be from 1 to 5."),
        (b"<html>", "The body: Invalid JSON"),
        (json.dumps({"queries": ["x" * 20_000]}).encode(), "The request is larger than"),
    ]:
        reply = client.post("/retrieve", content=body)
        assert reply.status_code == 422
        assert reply.json()["detail"].startswith(sentence)
    # The largest allowed request, in ASCII JSON, takes 12 bytes a character.
    largest = json.dumps({"queries": ["\U0001f30a" * 20] * 2}).encode()
    assert client.post("/retrieve", content=largest).status_code == 200
    assert _metric(client, 'headrace_env_search_errors_total{kind="refused"}') == 3


def test_health_names_the_index(small_index: OpenIndex, serve):
    assert serve(small_index).get("/health").json() == {
        "ready": True,
        "backend": "bm25",
        "documents": 5,
        "index": small_index.manifest.fingerprint,
    }


class Counting:
    """The real backend, with its calls recorded; the first call waits for `gate`."""

    def __init__(self, index: OpenIndex) -> None:
        self.inner = index.backend
        self.calls: list[list[str]] = []
        self.gate = threading.Event()

    def search(self, queries: list[str], k: int):
        self.calls.append(queries)
        if len(self.calls) == 1:
            self.gate.wait(20)
        return self.inner.search(queries, k)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_concurrent_requests_are_merged_and_repeats_are_searched_once(small_index: OpenIndex, serve):
    backend = Counting(small_index)
    client = serve(replace(small_index, backend=backend))
    with ThreadPoolExecutor(17) as pool:
        first = pool.submit(client.post, "/retrieve", json={"query": "mill"})
        _wait_until(lambda: len(backend.calls) > 0)
        asked = [
            pool.submit(client.post, "/retrieve", json={"queries": [f"river {i % 8}", "turbine"], "topk": 1 + i % 2})
            for i in range(16)
        ]
        _wait_until(lambda: _metric(client, "headrace_env_search_queries_total") == 33)
        backend.gate.set()
        replies = [reply.result() for reply in asked]
    assert first.result().status_code == 200
    assert [reply.status_code for reply in replies] == [200] * 16
    for i, reply in enumerate(replies):
        assert reply.content == expected(small_index, [f"river {i % 8}", "turbine"], 1 + i % 2, False)
    searched = [query for call in backend.calls for query in call]
    assert sorted(searched) == sorted(["mill", *(f"river {i}" for i in range(8)), "turbine", "turbine"])
    assert len(backend.calls) <= 4, f"33 queries in {len(backend.calls)} searches"
    assert _metric(client, "headrace_env_search_queries_total") == 33


def _metric(client: httpx.Client, name: str) -> float:
    for line in client.get("/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(f"{name} is not exported")


def test_the_cache_is_keyed_by_normalised_query_and_topk(small_index: OpenIndex, serve):
    backend = Counting(small_index)
    backend.gate.set()
    client = serve(replace(small_index, backend=backend), cache_entries=2)
    for query, topk in [("old mill", 1), ("  old\n mill ", 1), ("old mill", 2), ("weir", 1), ("old mill", 1)]:
        assert client.post("/retrieve", json={"query": query, "topk": topk}).status_code == 200
    assert backend.calls == [["old mill"], ["old mill"], ["weir"], ["old mill"]]
    assert _metric(client, "headrace_env_search_cache_hits_total") == 1


class Stuck:
    """A backend that does not answer until it is let go, and one that fails."""

    def __init__(self, fails: bool = False) -> None:
        self.gate = threading.Event()
        self.fails = fails

    def search(self, queries: list[str], k: int):
        if self.fails:
            raise RuntimeError("disk gone")
        self.gate.wait(20)
        return np.full((len(queries), k), NO_DOCUMENT), np.zeros((len(queries), k), np.float32)


def test_a_search_past_its_deadline_is_answered_503(small_index: OpenIndex, serve):
    stuck = Stuck()
    client = serve(replace(small_index, backend=stuck), deadline_s=0.2)
    reply = client.post("/retrieve", json={"query": "mill"})
    stuck.gate.set()
    assert (reply.status_code, reply.json()) == (503, {"detail": "The request took longer than 0.2 s."})
    assert client.get("/health").status_code == 200


def test_a_failing_search_is_a_sentence_and_no_stack_trace(small_index: OpenIndex, serve):
    client = serve(replace(small_index, backend=Stuck(fails=True)))
    for _ in range(2):
        reply = client.post("/retrieve", json={"query": "mill"})
        assert (reply.status_code, reply.json()) == (
            500,
            {"detail": "The search failed: the log of env_search says why."},
        )
    assert _metric(client, 'headrace_env_search_errors_total{kind="failed"}') == 2
