"""`python -m services.env_search` as a process: start, recall over HTTP, refusals, and its end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from services.env_search.backend import IndexSpec
from services.env_search.index import OpenIndex, build_index

EXAMPLES = Path(__file__).parents[2] / "examples"
FOUR_CONNECTIONS = """
from services.env_search import __main__ as service, server
server.CONNECTIONS = 4
service.main(service.load_service_config())
"""

HANGS = """
import time
from dataclasses import replace
from services.env_search import __main__ as service, app, server

class Hangs:
    def search(self, queries, k):
        time.sleep(1000)

def opened(*args, open_index=service.open_index):
    return replace(open_index(*args), backend=Hangs())

service.open_index, server.STUCK_S = opened, {stuck_s}
app.Retriever.__init__.__kwdefaults__["deadline_s"] = 1.0
service.main(service.load_service_config())
"""


def environment(**search: object) -> dict[str, str]:
    return os.environ | {f"HEADRACE_SEARCH__{key.upper()}": str(value) for key, value in search.items()}


@contextmanager
def service(*arguments: str, **search: object) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A running service on a free port and a client of it; it is ended with SIGTERM. `arguments`: of Python."""
    process = subprocess.Popen(
        [sys.executable, *(arguments or ("-m", "services.env_search"))],
        env=environment(port=0, **search),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        said = process.stdout.readline()
        found = re.search(r"(http://\S+)/retrieve", said)
        assert found, said
        with httpx.Client(base_url=found.group(1), timeout=30) as client:
            yield process, client
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()
            assert process.stdout
            process.stdout.close()


def refused(**search: object) -> str:
    """What a service that refuses to start says, in one line, with exit code 2."""
    run = subprocess.run(
        [sys.executable, "-m", "services.env_search"],
        env=environment(**search),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 2, run.stderr
    assert run.stderr.count("\n") == 1
    return run.stderr


@pytest.mark.slow
def test_for_a_run_that_searches_nothing_it_is_healthy_and_does_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_CONFIG", str(EXAMPLES / "arith.toml"))
    process = subprocess.Popen(
        [sys.executable, "-m", "services.env_search"], env=environment(port=0), stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout
            found = re.search(r"http://\S+/health", process.stdout.readline())
            assert found
            reply = httpx.get(found.group(), trust_env=False)
            assert reply.status_code == 200 and reply.json()["ready"]
            assert (
                "process_cpu_seconds_total"
                in httpx.get(found.group().replace("health", "metrics"), trust_env=False).text
            )
            assert httpx.post(found.group().replace("health", "retrieve"), trust_env=False).status_code == 404
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_recall_at_3_over_http_without_torch(shared_data: Path, tmp_path: Path):
    corpus = shared_data / "qa" / "xquad_corpus.jsonl"
    build_index(corpus, tmp_path / "index", IndexSpec())
    rows = [json.loads(line) for line in (shared_data / "qa" / "xquad_qa.dev.jsonl").read_text().splitlines()]
    with service(corpus=corpus, index=tmp_path / "index") as (process, client):
        assert client.get("/health").json()["ready"]
        # CPU seconds, so that a busy machine does not decide: up within 5 s.
        cpu = re.search(r"^process_cpu_seconds_total (\S+)$", client.get("/metrics").text, re.MULTILINE)
        assert cpu
        assert float(cpu.group(1)) < 5
        found = 0
        for start in range(0, len(rows), 50):
            batch = rows[start : start + 50]
            reply = client.post("/retrieve", json={"queries": [row["question"] for row in batch], "topk": 3})
            for row, documents in zip(batch, reply.json()["result"], strict=True):
                found += row["passage_id"] in [document["id"] for document in documents]
        mapped = Path(f"/proc/{process.pid}/maps")
        if mapped.exists():
            libraries = mapped.read_text()
            assert "libtorch" not in libraries
            assert "index/bm25/scores.npy" in libraries, "the index must be mapped, not read"
            assert "xquad_corpus.jsonl" in libraries
    assert found / len(rows) >= 0.98


@pytest.mark.slow
def test_an_index_of_the_runs_own_is_built_at_the_first_start(corpus_file: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HEADRACE_RUN__ROOT", str(tmp_path))
    for _ in range(2):
        with service(corpus=corpus_file) as (_process, client):
            assert client.post("/retrieve", json={"query": "weir"}).json()["result"][0][0]["id"] == "3"
    assert (tmp_path / "run" / "index" / "manifest.json").exists()


@pytest.mark.slow
def test_what_cannot_be_served_is_refused_in_one_sentence(corpus_file: Path, tmp_path: Path):
    build_index(corpus_file, tmp_path / "index", IndexSpec())
    assert "nowhere.jsonl cannot be read" in refused(
        corpus=tmp_path / "nowhere.jsonl", index=tmp_path / "index", port=0
    )
    assert "No corpus is named: set search.corpus" in refused(index=tmp_path / "index", port=0)
    corpus_file.write_text(corpus_file.read_text() + '{"contents": "new"}\n')
    assert "which has other content" in refused(corpus=corpus_file, index=tmp_path / "index", port=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(corpus=corpus_file, index=tmp_path / "index", port=port)
    assert f"127.0.0.1:{port} cannot be opened (Address already in use)" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_build_ends_with_the_service_that_wants_it(tmp_path: Path, number: signal.Signals):
    corpus = tmp_path / "corpus.jsonl"
    words = [f"w{i}" for i in range(5000)]
    with corpus.open("w") as file:
        for i in range(40_000):
            text = " ".join(words[(i * k) % len(words)] for k in range(1, 40))
            file.write(json.dumps({"id": str(i), "contents": f'"T{i}"\n{text}'}) + "\n")
    run = environment(port=0, corpus=corpus) | {"HEADRACE_RUN__ROOT": str(tmp_path)}
    process = psutil.Popen([sys.executable, "-m", "services.env_search"], env=run, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (children := process.children()) or not (tmp_path / "run").exists():
            assert process.poll() is None and time.monotonic() < deadline, "no build"
            time.sleep(0.02)
    finally:
        process.send_signal(number)
        process.wait(10)
    _, left = psutil.wait_procs(children, timeout=20)
    assert left == []


@pytest.mark.slow
def test_connections_beyond_the_limit_are_answered_with_503(corpus_file: Path, small_index: OpenIndex):
    index = corpus_file.with_name("index")

    def until(client: httpx.Client, status: int) -> None:
        deadline = time.monotonic() + 20
        while (seen := client.get("/health").status_code) != status:
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)

    with service("-c", FOUR_CONNECTIONS, corpus=corpus_file, index=index) as (_, client), ExitStack() as held:
        address = (client.base_url.host, client.base_url.port or 0)
        for _ in range(2):
            held.enter_context(socket.create_connection(address))
        until(client, 200)
        held.enter_context(socket.create_connection(address))
        until(client, 503)
        held.close()
        until(client, 200)


def metric(client: httpx.Client, name: str) -> float:
    return float(client.get("/metrics").text.partition(f"\n{name} ")[2].partition("\n")[0])


@pytest.mark.slow
def test_a_search_that_hangs_is_named_keeps_nobody_waiting_and_no_process_alive(
    corpus_file: Path, small_index: OpenIndex
):
    index = corpus_file.with_name("index")
    with service("-c", HANGS.format(stuck_s=60), corpus=corpus_file, index=index) as (process, client):
        assert client.get("/health").json()["ready"]
        first = client.post("/retrieve", json={"query": "weir"})
        assert first.status_code == 503
        while (health := client.get("/health")).status_code == 200:
            time.sleep(0.05)
        began = time.monotonic()
        later = client.post("/retrieve", json={"query": "mill"})
        assert time.monotonic() - began < 1, "at once, not at its deadline"
        assert health.status_code == later.status_code == 503 and not health.json()["ready"]
        for said in (health, later):
            assert re.match(r"A search has not ended for \d s, and nothing is searched", said.json()["detail"])
        assert metric(client, "headrace_env_search_searching_seconds") >= 1
        assert metric(client, 'headrace_env_search_errors_total{kind="hung"}') >= 1
    assert process.returncode == 0, "it has left on SIGTERM within ten seconds"


@pytest.mark.slow
def test_a_search_that_is_stuck_ends_the_process_for_another_to_start(corpus_file: Path, small_index: OpenIndex):
    run = subprocess.Popen(
        [sys.executable, "-c", HANGS.format(stuck_s=2)],
        env=environment(port=0, corpus=corpus_file, index=corpus_file.with_name("index")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout
        address = re.search(r"(http://\S+)/retrieve", run.stdout.readline())
        assert address
        assert httpx.post(f"{address[1]}/retrieve", json={"query": "weir"}).status_code == 503
        _, said = run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 1
    assert said.endswith("env_search: a search has not ended for 2 s, so this process ends: start it again\n"), said
    assert "Traceback" not in said
