"""A small corpus, its index, and a running server around any index."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from services.env_search.app import Retriever, create_app
from services.env_search.backend import IndexSpec
from services.env_search.index import OpenIndex, build_index, open_index
from services.env_search.requests import Limits
from shared.http_server import listen

PASSAGES = [
    ("Mill", "The old mill stands by the river and grinds barley."),
    ("Turbine", "A turbine turns falling water into light."),
    ("Penstock", "The penstock carries water under pressure to the turbine."),
    ("Weir", "A weir holds the river back above the mill."),
    ("Été", "L'été, la rivière est basse — 6½ pieds."),
]


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    """Five passages in Search-R1's form."""
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": str(number), "contents": f'"{title}"\n{text}'} for number, (title, text) in enumerate(PASSAGES)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def small_index(corpus_file: Path, tmp_path: Path) -> OpenIndex:
    """The BM25 index of the small corpus."""
    build_index(corpus_file, tmp_path / "index", IndexSpec())
    return open_index(corpus_file, tmp_path / "index", IndexSpec())


Serve = Callable[..., httpx.Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(index, limits=Limits(), **retriever_settings)`: a client of a server that runs till the end."""
    ends: list[Callable[[], Any]] = []

    def start(index: OpenIndex, limits: Limits | None = None, **settings: Any) -> httpx.Client:
        sock: socket.socket = listen("127.0.0.1", 0, "search.port")
        app = create_app(Retriever(index, **settings), limits or Limits())
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        client = httpx.Client(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", timeout=30)

        def stop() -> None:
            client.close()
            server.should_exit = True
            thread.join(timeout=20)
            sock.close()

        ends.append(stop)
        return client

    yield start
    for end in reversed(ends):
        end()
