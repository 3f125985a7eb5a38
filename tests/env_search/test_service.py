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
from services.env_search.unasked import why_unasked
from shared.config import Config
from shared.settings import Env

EXAMPLES = Path(__file__).parents[2] / "examples"
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
FOUR_CONNECTIONS = """
from services.env_search import __main__ as service, server
from shared.service import main
server.CONNECTIONS = 4
main("env_search", service.serve)
"""

HANGS = """
import time
from dataclasses import replace
from services.env_search import __main__ as service, app, index, server
from shared.service import main

class Hangs:
    def search(self, queries, k):
        time.sleep(1000)

def opened(*args, open_index=index.open_index):
    return replace(open_index(*args), backend=Hangs())

index.open_index, server.STUCK_S = opened, {stuck_s}
app.Retriever.__init__.__kwdefaults__["deadline_s"] = 1.0
main("env_search", service.serve)
"""


def environment(**search: object) -> dict[str, str]:
    return os.environ | {f"HEADRACE_SEARCH__{key.upper()}": str(value) for key, value in search.items()}


@contextmanager
def service(*arguments: str, **search: object) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A running service on a free port and a client of it; it is ended with SIGTERM. `arguments`: of Python."""
    process = subprocess.Popen(
        [sys.executable, *(arguments or ("-m", "services.env_search"))],
        env=environment(port=0, **search),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        said = process.stderr.readline()
        found = re.match(rf"{TIME} env_search INFO (http://\S+)/retrieve, ", said)
        assert found, said
        with httpx.Client(base_url=found.group(1), timeout=30) as client:
            yield process, client
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()
            process.stderr.close()


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
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"HEADRACE_CONFIG": str(EXAMPLES / "arith.toml")}, 'env.kind is "single"'),
        ({"HEADRACE_ENV__URL": "http://192.0.2.1:8000"}, "env.url is another retriever's, at 192.0.2.1:8000"),
    ],
)
def test_for_a_run_that_searches_nothing_here_it_is_healthy_and_does_no_more(settings: dict[str, str], why: str):
    process = subprocess.Popen(
        [sys.executable, "-m", "services.env_search"],
        env=environment(port=0) | settings,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr
            said = process.stderr.readline()
            found = re.match(
                rf"{TIME} env_search INFO (http://\S+)/health alone: search.corpus is empty and {why}$", said
            )
            assert found, said
            with httpx.Client(base_url=found[1], trust_env=False) as client:
                health = client.get("/health").raise_for_status().json()
                assert health["ready"] and why in health["detail"]
                assert "process_cpu_seconds_total" in client.get("/metrics").text
                assert client.post("/retrieve").status_code == 404
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_only_a_corpus_that_nobody_misses_may_be_left_out():
    ours = {"http://127.0.0.1:8000", "http://localhost:8000/", f"http://{socket.gethostname()}:8000"}
    theirs = {"http://127.0.0.1:8001", "http://192.0.2.1:8000", "https://retriever.invalid"}
    unasked = {url for url in ours | theirs if why_unasked(Config(env=Env(url=url)), 8000)}
    assert unasked == theirs
    assert not why_unasked(Config(), 8001), "env.url is not set"


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


@pytest.fixture
def long_build(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A service in a session of its own that is building its index."""
    corpus = tmp_path / "corpus.jsonl"
    words = [f"w{i}" for i in range(5000)]
    with corpus.open("w") as file:
        for i in range(40_000):
            text = " ".join(words[(i * k) % len(words)] for k in range(1, 40))
            file.write(json.dumps({"id": str(i), "contents": f'"T{i}"\n{text}'}) + "\n")
    run = environment(port=0, corpus=corpus) | {"HEADRACE_RUN__ROOT": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "services.env_search"],
        env=run,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run").exists():
            assert process.poll() is None and time.monotonic() < deadline, "no build"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.alone
def test_a_build_ends_with_the_service_that_wants_it(long_build: subprocess.Popen[str], number: signal.Signals):
    children, began = psutil.Process(long_build.pid).children(), time.monotonic()
    if number == signal.SIGINT:
        os.killpg(long_build.pid, number)  # as Ctrl-C does: the child hears it too
    else:
        long_build.send_signal(number)
    _, said = long_build.communicate(timeout=10)
    assert time.monotonic() - began < 2
    assert (long_build.returncode, said) == (0 if number != signal.SIGKILL else -number, "")
    _, left = psutil.wait_procs(children, timeout=20)
    assert left == [] and children


@pytest.mark.slow
def test_a_build_that_is_killed_is_told_in_a_sentence(long_build: subprocess.Popen[str]):
    for child in psutil.Process(long_build.pid).children():
        if "resource_tracker" not in " ".join(child.cmdline()):
            child.kill()
    _, said = long_build.communicate(timeout=10)
    assert long_build.returncode == 2
    assert re.fullmatch(r"env_search: The build of \S+/index ended with status -9: .*\n", said), said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("call", ["time.sleep(1000)", "libc.pthread_mutex_lock(lock)"])
@pytest.mark.alone
def test_told_to_stop_while_it_reads_the_corpus_it_ends_quietly(number: signal.Signals, call: str):
    work = f"""
import ctypes, time
from services.env_search import index
from services.env_search.__main__ import end_at_once_while_starting, serve
from shared.service import main

libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(128)
libc.pthread_mutex_lock(lock)

def reads(path):
    print("reads", flush=True)
    {call}

index.file_size = reads
end_at_once_while_starting()
main("env_search", serve)
"""
    run = environment(port=0, corpus="a disk that hangs", index="-")
    process = subprocess.Popen(
        [sys.executable, "-c", work], env=run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stdout.readline() == "reads\n"
        began = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
        assert time.monotonic() - began < 2
    finally:
        process.kill()
    assert (process.returncode, said) == (0, "")


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
@pytest.mark.alone
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
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stderr
        address = re.search(r"(http://\S+)/retrieve", run.stderr.readline())
        assert address
        assert httpx.post(f"{address[1]}/retrieve", json={"query": "weir"}).status_code == 503
        _, said = run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 1
    assert re.search(rf"\n{TIME} env_search ERROR a search has not ended for 2 s, so this process ends: .*\n$", said)
    assert "Traceback" not in said
