"""A whole actor in a test: the actor itself, what it talks to, and what a replay service would see of it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import redis

from services.actor.engines.engine import Engine, Generation, Sampling
from services.actor.service import serve
from services.actor.troubles import SENTENCES, TROUBLES
from shared.config import Config
from shared.messages import TRAIN, GroupHeader, Task, WeightsNotice, decode, encode
from shared.seeds import derive
from shared.streams import ACTORS, FIELD, Keys, add
from tests.tiny_model import WORDS

KEYS = Keys("test")
REPOSITORY = Path(__file__).resolve().parents[2]
WAIT_S = 120.0
T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def eight_under_way(engine: Engine) -> tuple[list[list[int]], list[asyncio.Task[Generation]]]:
    """Eight prompts, and their long answers, of which eight tokens are there."""
    prompts = [[3, 20 + i, 2, 4] for i in range(8)]
    running = [asyncio.ensure_future(engine.generate(p, Sampling(1.0, 380, i))) for i, p in enumerate(prompts)]
    before = engine.progress
    while engine.progress < before + 8:
        await asyncio.sleep(0.001)
    return prompts, running


def wait_for(what: str, look: Callable[[], T | None], seconds: float = WAIT_S) -> T:
    """The first thing that `look` finds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {what}")


def start_search(folder: Path, port: int) -> subprocess.Popen:
    """env_search over one passage per letter, once it answers. Its index is in `folder`, for the next one too."""
    letters = [w for w in WORDS if w.isalpha() and len(w) == 1]
    lines = [json.dumps({"id": f"d-{w}", "contents": f'"{w}"\n{w} is a {w}'}) for w in letters]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    env = os.environ | {
        "HEADRACE_SEARCH__CORPUS": str(folder / "corpus.jsonl"),
        "HEADRACE_SEARCH__PORT": str(port),
        "HEADRACE_RUN__ROOT": str(folder),
        "HEADRACE_SEARCH__STEMMER": "none",
    }
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "services.env_search"], env=env, cwd=REPOSITORY, stderr=log)

    def healthy() -> bool | None:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200 or None
        except httpx.HTTPError:
            return None

    wait_for("env_search", healthy)
    return process


class ActorThread:
    """An actor in a thread of this process, which has torch imported already."""

    def __init__(self, config: Config, engine: Engine | None = None) -> None:
        TROUBLES._next = dict.fromkeys(SENTENCES, 0.0)  # as in a process of its own
        self.error: BaseException | None = None
        self.started = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve(config, engine)))
        self.thread.start()
        assert self.started.wait(10)

    async def _serve(self, config: Config, engine: Engine | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.task = asyncio.ensure_future(serve(config, engine))
        self.started.set()
        try:
            await self.task
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001  the test looks at it
            self.error = error

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join(20)
        assert not self.thread.is_alive()


def make_task(number: int, **changes) -> Task:
    fields: dict = {
        "id": f"t{number}",
        "kind": TRAIN,
        "number": number,
        "attempt": 0,
        "seed": derive(7, number),
        "group_size": 4,
        "temperature": 1.0,
        "min_version": 0,
        "data_source": "letters",
        "messages": [{"role": "question", "content": "x y a ?"}],
        "ground_truth": ["a", "b", "c", "d"],
    }
    return Task(**(fields | changes))


def send(client: redis.Redis, *tasks: Task) -> None:
    for task in tasks:
        add(client, KEYS.tasks, encode(task))


def announce(client: redis.Redis, published: tuple[WeightsNotice, Path]) -> WeightsNotice:
    add(client, KEYS.weights, encode(published[0]))
    return published[0]


def headers(client: redis.Redis, count: int) -> list[GroupHeader]:
    """The first `count` group headers, in order of task number, once they are there."""

    def look() -> list[GroupHeader] | None:
        entries: Any = client.xrange(KEYS.groups)
        return [decode(fields[FIELD], GroupHeader) for _, fields in entries] if len(entries) >= count else None

    found = wait_for(f"{count} groups", look)
    assert len(found) == count
    return sorted(found, key=lambda h: h.number)


def heartbeats(client: redis.Redis) -> list[dict]:
    names: Any = client.smembers(KEYS.actors)
    values = [client.get(KEYS.actor(name.decode())) for name in names]
    return [json.loads(v) for v in values if v]


def ready(client: redis.Redis) -> int:
    return sum(beat["version"] is not None for beat in heartbeats(client))


def pending(client: redis.Redis) -> int:
    return client.xpending(KEYS.tasks, ACTORS)["pending"]
