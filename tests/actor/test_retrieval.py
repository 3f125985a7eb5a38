"""The retrieval client against a real HTTP server that misbehaves on order."""

import asyncio
import json
from collections.abc import Callable

import pytest

from services.actor.retrieval import WINDOW_S, RetrievalClient, RetrievalFailed
from shared.latency import parse_latency


class Server:
    """Answers each POST with what `reply(queries)` gives: (status, body), or waits for ever on None."""

    def __init__(self, reply: Callable[[list[str]], tuple[int, object] | None]) -> None:
        self.reply = reply
        self.requests: list[list[str]] = []
        self.index = ""  # that its answers name; none as other retrievers
        self.health: tuple[int, object] = (200, {"index": "f1"})

    async def __aenter__(self) -> "Server":
        self.handlers: set[asyncio.Task] = set()
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for handler in self.handlers:
            handler.cancel()
        await asyncio.gather(*self.handlers, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.ensure_future(self._serve(reader, writer))
        self.handlers.add(handler)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            if head.startswith("get /health"):
                status, body = self.health
            else:
                length = int(head.split("content-length:")[1].split("\r\n")[0])
                queries = json.loads(await reader.readexactly(length))["queries"]
                self.requests.append(queries)
                answer = self.reply(queries)
                if answer is None:
                    await asyncio.sleep(60)
                    return
                status, body = answer
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            named = f"X-Headrace-Index: {self.index}\r\n" if self.index else ""
            head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n{named}connection: close\r\n\r\n"
            writer.write(head.encode() + data)
            await writer.drain()
        finally:
            writer.close()


def hit(query: str, scores: bool = True) -> dict:
    document = {"id": query, "contents": f'"T {query}"\nbody {query}'}
    return {"document": document, "score": 1.0} if scores else document


def right(queries: list[str]) -> tuple[int, object]:
    return 200, {"result": [[hit(q)] for q in queries]}


def client(server: Server, retries: int = 2, timeout_s: float = 5.0, **more) -> RetrievalClient:
    return RetrievalClient(server.url, topk=1, timeout_s=timeout_s, retries=retries, **more)


async def test_queries_at_once_travel_together_and_come_back_to_their_askers():
    async with Server(right) as server, client(server) as retriever:
        found = await asyncio.gather(*(retriever.search(f"q{i}") for i in range(20)))
        assert [d[0].id for d in found] == [f"q{i}" for i in range(20)]
        assert (found[3][0].title, found[3][0].text) == ("T q3", "body q3")
        assert len(server.requests) == 1


async def test_a_query_that_nobody_waits_for_any_more_is_not_sent_and_no_request_is_empty():
    async with Server(right) as server, client(server) as retriever:
        for others in ([], ["q"]):
            askers = [asyncio.create_task(retriever.search(query)) for query in ("gone", *others)]
            await asyncio.sleep(0)  # all wait for company
            askers[0].cancel()
            await asyncio.gather(*askers, return_exceptions=True)
            await asyncio.sleep(2 * WINDOW_S)
        assert server.requests == [["q"]]


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_answers_without_scores_are_read_too(n):
    bare = lambda queries: (200, {"result": [[hit(q, scores=False)] for q in queries]})  # noqa: E731
    async with Server(bare) as server, client(server) as retriever:
        found = await asyncio.gather(*(retriever.search(f"q{i}") for i in range(n)))
        assert [d[0].id for d in found] == [f"q{i}" for i in range(n)]


@pytest.mark.parametrize(
    "bad",
    [
        (500, "<html>no</html>"),
        (200, "<html>no</html>"),
        (200, {"result": []}),
        (200, {"result": [[1]]}),
        (200, {"result": ["x"]}),
        (200, [1]),
        (200, {"result": [[{"id": "1"}]]}),
    ],
)
async def test_a_bad_answer_is_tried_again_and_counted(bad):
    answers = [bad, right(["q"])]
    retried = []
    async with (
        Server(lambda _: answers.pop(0)) as server,
        client(server, on_retry=lambda: retried.append(1)) as retriever,
    ):
        assert (await retriever.search("q"))[0].id == "q"
    assert len(retried) == 1


async def test_a_server_that_stays_bad_fails_after_the_retries():
    async with Server(lambda _: (503, "")) as server, client(server, retries=1) as retriever:
        with pytest.raises(RetrievalFailed, match="2 tries"):
            await retriever.search("q")
        assert len(server.requests) == 2


async def test_a_server_that_does_not_answer_fails_in_time():
    async with Server(lambda _: None) as server, client(server, retries=0, timeout_s=0.1) as retriever:
        with pytest.raises(RetrievalFailed):
            await asyncio.wait_for(retriever.search("q"), 2)


async def test_nobody_there_fails_after_the_retries():
    async with Server(right) as server:
        pass
    async with client(server, retries=1) as retriever:
        with pytest.raises(RetrievalFailed):
            await retriever.search("q")


async def test_one_refused_query_does_not_fail_the_others():
    def reply(queries: list[str]) -> tuple[int, object]:
        return (422, {"detail": "no"}) if "bad" in queries else right(queries)

    async with Server(reply) as server, client(server) as retriever:
        a, b, c = await asyncio.gather(*(retriever.search(q) for q in ("x", "bad", "y")), return_exceptions=True)
        assert isinstance(b, RetrievalFailed)
        assert not isinstance(a, BaseException) and not isinstance(c, BaseException)
        assert (a[0].id, c[0].id) == ("x", "y")


@pytest.mark.parametrize(
    "health", [(404, ""), (405, ""), (422, {"detail": "no"}), (501, "<html>"), (307, ""), (200, "ok"), (200, ["ok"])]
)
async def test_a_retriever_that_does_not_say_its_index_has_none(health):
    async with Server(right) as server, client(server, retries=0) as retriever:
        server.health = health
        assert await retriever.index() == ""


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_retriever_that_cannot_say_its_index_now_is_asked_again(status):
    async with Server(right) as server, client(server, retries=0) as retriever:
        server.health = (status, {"index": "f1"})
        with pytest.raises(RetrievalFailed, match=f"status {status}"):
            await retriever.index()


async def test_the_index_is_asked_again_after_an_outage():
    async with Server(right) as server, client(server, retries=0) as retriever:
        assert await retriever.index() == "f1"
        retriever.url = "http://127.0.0.1:9"
        with pytest.raises(RetrievalFailed):
            await retriever.search("q")
        retriever.url = server.url
        assert retriever._index is None
        assert await retriever.index() == "f1"


async def test_another_index_behind_the_same_address_is_noticed_by_its_answers():
    async with Server(right) as server, client(server) as retriever:
        assert await retriever.index() == "f1"
        assert [d.index for d in await retriever.search("q")] == [""]
        assert await retriever.index() == "f1", "answers of other retrievers name none"
        for index in ("f1", "f2", "f1"):
            server.index = index
            assert [d.index for d in await retriever.search("q")] == [index]
            assert await retriever.index() == index


@pytest.mark.alone
async def test_a_latency_is_waited_behind_the_answer_and_holds_up_nobody_else():
    latency = parse_latency("uniform(0.05, 0.4)")
    ended: dict[int, float] = {}
    async with Server(right) as server, client(server, latency=latency) as retriever:
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def ask(seed: int) -> None:
            found = await retriever.search(f"q{seed}", seed)
            ended[seed] = loop.time() - started
            assert found[0].id == f"q{seed}"

        await asyncio.gather(*(ask(seed) for seed in range(20)))
        assert len(server.requests) == 1  # still merged
    for seed, seconds in ended.items():
        assert latency.draw(seed) <= seconds < latency.draw(seed) + 0.2
