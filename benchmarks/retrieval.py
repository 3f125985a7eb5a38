"""Requests per second of /retrieve with many clients over a mapped index, against bm25s in process and a plain server.

    python -m benchmarks.retrieval [--passages 1000000] [--clients 32] [--queries 1000] [--repetitions 3] [--folder DIR]

Each request is one query over HTTP, as a rollout asks it, and no query comes twice: nothing is answered from the cache.
In process is one thread of bm25s on the same queries and the same scores, with its faster backend (numba), without
passages of the answer being looked up. The plain server is FastAPI with bm25s as it comes (numpy) that answers one
query at a time; beside it stands the same with numba. All give the same documents. `folder`: where corpus and index
are kept between runs.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.apart import apart, own_bytes, resident_bytes
from benchmarks.figure import Figure, run_alone, say
from benchmarks.index import kept
from benchmarks.passages import questions
from cli.run.ports import free_port
from services.env_search.bm25 import FOLDER, Terms
from services.env_search.corpus import Corpus

TOPK = 3
UP_S = 300.0
HEAD = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
Answers = list[list[float]]  # the scores of each query's documents, in their order


def measure(
    *, passages: int = 1_000_000, clients: int = 32, queries: int = 1000, repetitions: int = 3, folder: str = ""
) -> list[Figure]:
    """Ours, the plain server and in process by turns, each turn other queries."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(folder or scratch)
        kept(root, passages)
        corpus, index = root / f"{passages}.jsonl", root / f"{passages}-index"
        asked = questions(queries * (repetitions + 1), passages)
        warm, *turns = [asked[i :: repetitions + 1] for i in range(repetitions + 1)]
        rates: dict[str, list[float]] = {}
        latencies: list[float] = []
        with (
            ours(corpus, index) as (pid, port),
            plain(corpus, index, passages, "numpy") as first,
            plain(corpus, index, passages, "numba") as faster,
        ):
            servers = {"ours": port, "plain": first, "plain, numba": faster}
            for each in servers.values():
                asyncio.run(_ask(each, warm, clients))
            for turn in turns:
                timed = {name: asyncio.run(_ask(each, turn, clients)) for name, each in servers.items()}
                timed["in process"] = apart(in_process, index, passages, warm, turn)
                for name, (seconds, _, answers) in timed.items():
                    assert np.allclose(_padded(answers), _padded(timed["ours"][2]), atol=1e-3), "other documents"
                    rates.setdefault(name, []).append(len(turn) / seconds)
                latencies += timed["ours"][1]
                say(", ".join(f"{name} {each[-1]:.0f}" for name, each in rates.items()) + " requests/s")
            memory, mapped = own_bytes(pid), resident_bytes(pid)
    note = f"{clients} clients, {passages:,} passages; in process is one thread without HTTP or passages"
    return [
        Figure(name="retrieval", unit="requests/s", ours=rates["ours"], peer=rates["in process"],
               against="bm25s in process",
               at_least=0.5, note=note),
        Figure(name="retrieval, against a plain server", unit="requests/s", ours=rates["ours"], peer=rates["plain"],
               against="FastAPI, a query at a time", at_least=3.0),
        Figure(name="retrieval, against a plain server with numba", unit="requests/s", ours=rates["ours"],
               peer=rates["plain, numba"], against="the same with bm25s's other backend"),
        Figure(name="retrieval, p99", unit="ms", ours=[1e3 * float(np.percentile(latencies, 99))],
               judged="ours"),
        Figure(name="retrieval, memory of its own", unit="MiB", ours=[memory / 2**20], judged="ours",
               note=f"{mapped / 2**20:.0f} MiB with the index files that it maps"),
    ]  # fmt: skip


@contextmanager
def ours(corpus: Path, index: Path) -> Iterator[tuple[int, int]]:
    """The real service, without a cache: (pid, port)."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(f'[search]\ncorpus = "{corpus}"\nindex = "{index}"\nport = {port}\ncache_entries = 0\n')
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        environment |= {"HEADRACE_CONFIG": str(path), "HEADRACE_LOG": "WARNING"}
        service = subprocess.Popen([sys.executable, "-m", "services.env_search"], env=environment)
        try:
            yield service.pid, port
        finally:
            service.terminate()
            service.wait()


@contextmanager
def plain(corpus: Path, index: Path, passages: int, backend: str) -> Iterator[int]:
    """The plain server's port."""
    port = free_port()
    arguments = (corpus, index, passages, backend, port)
    process = get_context("spawn").Process(target=serve_plainly, args=arguments, daemon=True)
    process.start()
    try:
        yield port
    finally:
        process.terminate()
        process.join()


def serve_plainly(corpus: Path, index: Path, passages: int, backend: str, port: int) -> None:
    """What one writes first: an endpoint that searches and answers."""
    import uvicorn
    from fastapi import FastAPI

    search, documents, app = searcher(index, passages, backend), Corpus(corpus), FastAPI()

    @app.post("/retrieve")
    async def retrieve(request: dict[str, Any]) -> dict[str, Any]:
        out = []
        for query in request["queries"]:
            numbers, scores = search(query)
            out.append([{"document": documents[n], "score": s} for n, s in zip(numbers, scores, strict=True)])
        return {"result": out}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def in_process(index: Path, passages: int, warm: list[str], queries: list[str]) -> tuple[float, list[float], Answers]:
    """Seconds of all queries, one after the other, no waits, and scores."""
    search = searcher(index, passages, "numba")
    for query in warm:
        search(query)
    began = time.perf_counter()
    found = [search(query)[1] for query in queries]
    return time.perf_counter() - began, [], found


def searcher(index: Path, passages: int, backend: str) -> Callable[[str], tuple[list[int], list[float]]]:
    """bm25s over the scores of a built index: the numbers and scores of a query's TOPK documents."""
    import bm25s

    folder, terms = index / FOLDER, Terms("english")
    engine = bm25s.BM25(method="lucene", backend=backend)
    files = {"data": "scores", "indices": "documents", "indptr": "bounds"}
    engine.scores = {key: np.load(folder / f"{name}.npy", mmap_mode="r") for key, name in files.items()}
    engine.scores["num_docs"] = passages  # pyright: ignore[reportArgumentType]
    engine.nonoccurrence_array = None  # the method needs none
    engine.vocab_dict = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))

    def search(query: str) -> tuple[list[int], list[float]]:
        found: Any = engine.retrieve([terms(query)], k=TOPK, show_progress=False)
        return found.documents[0].tolist(), found.scores[0].tolist()

    return search


def _padded(answers: Answers) -> np.ndarray:
    """bm25s fills up with documents that hold no word of the query, at a score of 0; the service leaves them out."""
    return np.array([[*scores, *[0.0] * (TOPK - len(scores))] for scores in answers])


async def _ask(port: int, queries: list[str], clients: int) -> tuple[float, list[float], Answers]:
    waits, answers, left = [0.0] * len(queries), [list[float]()] * len(queries), iter(range(len(queries)))
    connections = [await _connect(port) for _ in range(clients)]

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for i in left:
            sent = time.perf_counter()
            body = json.dumps({"queries": [queries[i]], "topk": TOPK, "return_scores": True}).encode()
            writer.write(HEAD % len(body) + body)
            headers = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(headers.partition(b"content-length:")[2].partition(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
            waits[i] = time.perf_counter() - sent
            answers[i] = [hit["score"] for hit in reply["result"][0]]
        writer.close()
        await writer.wait_closed()

    began = time.perf_counter()
    await asyncio.gather(*(client(*connection) for connection in connections))
    return time.perf_counter() - began, waits, answers


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Once the server listens."""
    async with asyncio.timeout(UP_S):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)


if __name__ == "__main__":
    run_alone(measure)
