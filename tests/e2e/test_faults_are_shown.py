"""Each fault shows in a metric and in `headrace status`, with the sentence that a person needs."""

import asyncio
import json
import re
import resource
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis
from prometheus_client import REGISTRY, CollectorRegistry

from cli.chaos.session import IGNORE_XFSZ
from cli.main import main
from cli.run import local_redis
from services.actor.engines.engine import CanaryRefused, EngineFailed, Generation, Sampling
from services.actor.follower import Follower
from services.actor.text import Codec
from services.actor.troubles import SENTENCES, TROUBLES
from services.actor.wire import Wire
from services.learner.groups.reader import GroupReader
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights.room import PROBE_BYTES, until_written
from services.replay.http import make_app
from services.replay.service import Replay
from shared import redis_client, streams, weights
from shared.cancellation import stop
from shared.config import Config, build
from shared.group_store import GroupStore
from shared.http_server import listen, serve_http
from shared.messages import WeightsNotice, encode
from shared.redis_client import connect, connect_async, wait_until_up
from shared.versions import Version
from tests.actor.running import KEYS, ActorThread, free_port, make_task, send
from tests.actor.scripted_engine import ScriptedEngine
from tests.replay.peers import Questions
from tests.tiny_model import write_model

WAIT_S = 20.0
MB = 2**20


@dataclass
class World:
    """A run on a server of its own, and the services that a fault needs."""

    config: Config
    command: list[str]
    server: subprocess.Popen[bytes]
    said: Callable[[], str]  # what is printed, once
    replay: CollectorRegistry = field(default_factory=CollectorRegistry)
    wires: list[Wire] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.config.redis.url

    def wire(self) -> Wire:
        """An actor's connection."""
        self.wires.append(Wire(self.config))
        return self.wires[-1]

    def value(self, name: str, **labels: str) -> float:
        """Of a metric, in whichever registry has it."""
        found = [registry.get_sample_value(name, labels) for registry in (self.replay, REGISTRY)]
        return next((value for value in found if value is not None), 0.0)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The replay service, behind its address."""
        client = connect_async(self.url)
        service = Replay(self.config, client, Questions(50), None, self.replay)
        sock = listen("127.0.0.1", self.config.replay.port, "replay.port")
        tasks = [asyncio.create_task(serve_http(make_app(service), sock)), asyncio.create_task(service.run())]
        try:
            await until(lambda: service.state is not None)
            yield
        finally:
            await stop(*tasks)
            await client.aclose()

    async def status(self) -> str:
        """What `headrace status` says of it, in one line."""
        await asyncio.to_thread(main, ["status", str(self.config.run_dir)])
        return " ".join(self.said().split())

    def revive(self) -> None:
        """The server again, after it was killed."""
        self.server = start_server(self.command, self.url)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for it."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)


def start_server(command: list[str], url: str) -> subprocess.Popen[bytes]:
    """A server that answers."""
    process = subprocess.Popen([*IGNORE_XFSZ, *command], stdout=subprocess.DEVNULL)
    wait_until_up(url, 20)
    return process


@pytest_asyncio.fixture
async def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[World]:
    """A folder with its configuration, as `headrace status` wants it."""
    monkeypatch.setattr("services.replay.service.WATCH_S", 0.1)
    monkeypatch.setattr("services.actor.retrieval.MAX_ANSWER_BYTES", MB)
    monkeypatch.setattr("services.actor.troubles.TELL_EVERY_S", 0.0)
    monkeypatch.setattr(TROUBLES, "_next", dict.fromkeys(SENTENCES, 0.0))  # as in a process of its own
    folder = tmp_path / "test"
    folder.mkdir()
    made = local_redis.prepare(folder, 0)
    server = start_server(made.command, made.url)
    model = write_model(tmp_path / "model", seed=0)
    tree = {
        "run": {"name": "test", "root": str(tmp_path)},
        "redis": {"url": made.url},
        "model": {"path": str(model)},
        "env": {"prompt": "plain", "max_turns": 2, "timeout_s": 2.0, "retries": 0},
        "rollout": {"max_tokens": 200, "max_prompt_tokens": 60, "max_turn_tokens": 20, "deadline_s": 4.0},
        "actor": {"groups": 4, "threads": 1, "heartbeat_s": 0.2},
        "replay": {"port": free_port(), "policy": "none"},
    }
    config = build(tree)
    (folder / "config.toml").write_text(build(tree | {"redis": {}}).to_toml())  # the server is the run's own
    world = World(config, made.command, server, lambda: "".join(capsys.readouterr()))
    yield world
    await stop(*asyncio.all_tasks() - {asyncio.current_task()})  # of a test that failed in the middle
    for wire in world.wires:
        await wire.client.aclose()
    world.server.kill()
    world.server.wait()


@asynccontextmanager
async def a_silent_actor(w: World) -> AsyncIterator[None]:
    async with w.serving(), connect_async(w.url) as client:
        await client.sadd(KEYS.actors, "host-7")
        await client.set(KEYS.actor("host-7"), json.dumps({"groups_running": 3}))
        await until(lambda: w.value("headrace_replay_live_actors") == 1)
        await client.delete(KEYS.actor("host-7"))
        yield


@asynccontextmanager
async def a_dead_letter(w: World) -> AsyncIterator[None]:
    async with w.serving(), connect_async(w.url) as client:
        await streams.add(client, KEYS.groups, b"not a message")
        yield


@asynccontextmanager
async def redis_that_was_away(w: World) -> AsyncIterator[None]:
    async with w.serving():
        wire = w.wire()
        w.server.kill()
        w.server.wait()
        call = asyncio.create_task(wire.call(wire.client.ping))
        await until(lambda: w.value("headrace_actor_redis_wait_seconds", why="away") > 0)
        await until(lambda: w.value("headrace_replay_redis_wait_seconds", why="away") > 0)
        await asyncio.to_thread(w.revive)
        await call
        await until(lambda: w.value("headrace_replay_redis_wait_seconds", why="away") == 0)
        yield


@asynccontextmanager
async def redis_that_is_away(w: World) -> AsyncIterator[None]:
    async with w.serving():
        outbox = Outbox(connect(w.url), KEYS, Stop())
        w.server.kill()
        w.server.wait()
        waiting = asyncio.create_task(asyncio.to_thread(outbox.patiently, "say hello", outbox.client.ping))
        await until(lambda: w.value("headrace_replay_redis_wait_seconds", why="away") > 0)
        yield
        await asyncio.to_thread(w.revive)
        await waiting
        outbox.client.close()
        await until(lambda: w.value("headrace_replay_redis_wait_seconds", why="away") == 0)


@asynccontextmanager
async def redis_that_is_silent(w: World) -> AsyncIterator[None]:
    """It keeps its connections, and a read that it was given blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(redis_client._OPTIONS, "socket_timeout", 2.0)
        async with w.serving():
            w.server.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                w.server.send_signal(signal.SIGCONT)
            await until(lambda: w.value("headrace_replay_redis_wait_seconds", why="away") == 0)


@asynccontextmanager
async def redis_without_memory(w: World) -> AsyncIterator[None]:
    wire = w.wire()
    await wire.client.setrange("of another run", 20 * MB, "x")
    used = (await wire.client.info("memory"))["used_memory"]
    await wire.client.config_set("maxmemory", int(1.05 * used))
    put = asyncio.create_task(
        wire.call(lambda: GroupStore(wire.client, KEYS).store("t0", b"header", b"p" * 2**16, b"0-0"))
    )
    yield
    await wire.client.config_set("maxmemory", 0)
    await put


@asynccontextmanager
async def redis_without_room(w: World) -> AsyncIterator[None]:
    async with w.serving():
        wire = w.wire()
        resource.prlimit(w.server.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        calls = []
        for _ in range(2):  # the server finds out when it writes
            calls.append(asyncio.create_task(wire.call(lambda: wire.client.set("x", 1))))
            await asyncio.sleep(0.2)
        await until(lambda: w.value("headrace_replay_redis_wait_seconds", why="disk") > 0)
        yield
        resource.prlimit(w.server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await asyncio.gather(*calls)
        await until(lambda: w.value("headrace_replay_redis_wait_seconds", why="disk") == 0)


@asynccontextmanager
async def a_learner_without_room(w: World) -> AsyncIterator[None]:
    folder, client = w.config.run_dir / "weights", connect(w.url)
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> int:
        return (folder / "model").write_bytes(bytes(2 * PROBE_BYTES))

    stopping = Stop()
    resource.setrlimit(resource.RLIMIT_FSIZE, (PROBE_BYTES // 2, hard))
    try:
        tell = Outbox(client, KEYS, stopping).warn
        writing = asyncio.create_task(asyncio.to_thread(until_written, stopping, folder, write, tell))
        await until(lambda: w.value("headrace_learner_disk_wait_seconds") > 0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await writing
    client.close()


class Refusing(ScriptedEngine):
    """Whose canary is off."""

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        raise CanaryRefused("the canary is off by 0.4")


@asynccontextmanager
async def a_refused_version(w: World) -> AsyncIterator[None]:
    wire, version = w.wire(), Version(0, 1)

    async def on_swap() -> None: ...

    following = Follower(w.config, Refusing(lambda ids, sampling: ([], "eos")), wire, on_swap, on_swap)
    task = asyncio.create_task(following.run())
    notice = WeightsNotice(version=version, location="v", digest="", size=0, published=0.0, canary=[])
    (w.config.weights_dir / "v").mkdir(parents=True)
    await streams.add(wire.client, KEYS.weights, encode(notice))
    yield
    await stop(task)


@asynccontextmanager
async def a_damaged_version(w: World) -> AsyncIterator[None]:
    """Its file, which an actor with a real engine reads."""
    folder, digest, size = weights.publish(
        w.config.weights_dir, Version(0, 0), lambda folder: write_model(folder, seed=0) and None
    )
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
    notice = WeightsNotice(
        version=Version(0, 0), location=folder.name, digest=digest, size=size, published=0.0, canary=[]
    )
    async with connect_async(w.url) as client:
        await streams.add(client, KEYS.weights, encode(notice))
    with acting(w, None, {"kind": "single"}, actor=w.config.actor.model_dump() | {"engine": "torch"}):
        yield


@asynccontextmanager
async def a_poisoned_payload(w: World) -> AsyncIterator[None]:
    """Whose header was good: the learner is the first to look into it."""
    async with w.serving():
        client = connect(w.url)
        client.set(KEYS.payload("t0"), b"no payload")
        reader = GroupReader(client, KEYS, "test", cache_groups=1, cache_bytes=MB, vocabulary=10, context=10)
        assert list(reader.fetch(["t0"], reference=False).refused) == ["t0"]
        client.close()
        yield


@contextmanager
def acting(
    w: World, engine: ScriptedEngine | None, env: dict[str, Any], **sections: dict[str, Any]
) -> Iterator[ActorThread]:
    """An actor with a task."""
    actor = ActorThread(build(w.config.model_dump() | {"env": w.config.env.model_dump() | env} | sections), engine)
    with redis.Redis.from_url(w.url) as client:
        send(client, make_task(0, group_size=2))
    try:
        yield actor
    finally:
        actor.stop()


HEAD = b"HTTP/1.1 %s X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


@dataclass(frozen=True)
class Retriever:
    """Says which index it serves, and answers every query like this."""

    name: str
    status: bytes
    body: bytes
    wait_s: float = 0.0

    @asynccontextmanager
    async def __call__(self, w: World) -> AsyncIterator[None]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                asked = await reader.readuntil(b"\r\n\r\n")
                status, body = (b"200", b'{"index": "abc"}') if asked.startswith(b"GET") else (self.status, self.body)
                if body is self.body:
                    # what is left unread would have the answer torn off behind it
                    await reader.readexactly(int(asked.lower().split(b"content-length:")[1].split()[0]))
                    await asyncio.sleep(self.wait_s)
                writer.write(HEAD % (status, len(body)) + body)
                writer.close()
                await writer.wait_closed()
            except ConnectionError:
                pass  # who asked has had enough
            finally:
                writer.transport.abort()

        search = Codec(Path(w.config.model.path)).encode("<search> a </search>")
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            rollout = w.config.rollout.model_dump() | {"deadline_s": 60.0}
            with acting(w, ScriptedEngine(lambda ids, sampling: (search, "stop")), {"url": url}, rollout=rollout):
                yield


@dataclass(frozen=True)
class Reward:
    """A function of one's own that does this."""

    name: str
    body: str

    @asynccontextmanager
    async def __call__(self, w: World) -> AsyncIterator[None]:
        file = w.config.run_dir / f"{self.name}.py"
        file.write_text(f"import time\n\n\ndef reward(text):\n    {self.body}\n")
        reward = {"function": f"{file}:reward", "timeout_s": 0.5}
        engine = ScriptedEngine(lambda ids, sampling: ([5], "eos"))
        with acting(w, engine, {"kind": "single"}, reward=reward):
            yield


class Hanging(ScriptedEngine):
    """Says nothing ever."""

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def an_engine_that_hangs(w: World) -> AsyncIterator[None]:
    async with w.serving():
        with acting(w, Hanging(lambda ids, sampling: ([], "eos")), {"kind": "single"}) as actor:
            await until(lambda: w.value("headrace_replay_live_actors") == 1)
            yield
        assert isinstance(actor.error, EngineFailed)


Expected = float | Callable[[float], bool]


def positive(value: float) -> bool:
    """Of a wait that goes on."""
    return value > 0


@dataclass(frozen=True)
class Shown:
    """`metrics`: (name, labels) -> how much it has grown, or what its value must be like."""

    metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Expected]
    sentence: str
    begins: Callable[[World], Any]


def metric(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A key of Shown.metrics."""
    return f"headrace_{name}", tuple(labels.items())


FAULTS = [
    Shown(
        {metric("replay_silent_actors"): 1, metric("replay_live_actors"): 0},
        "actor host-7 has stopped reporting (hung, stopped, cut off or killed): another actor takes its 3 groups over",
        a_silent_actor,
    ),
    Shown({metric("replay_dead_letters_total"): 1}, "dead letters 1: see", a_dead_letter),
    Shown({metric("replay_dead_letters_total"): 1}, "dead letters 1: see", a_poisoned_payload),
    Shown(
        {metric("actor_redis_outages_total"): 1, metric("replay_redis_reconnects_total"): positive},
        "s the run waited for Redis; its state was loaded again",
        redis_that_was_away,
    ),
    Shown(
        {
            metric("learner_redis_wait_seconds", why="away"): positive,
            metric("replay_redis_wait_seconds", why="away"): positive,
        },
        "Redis does not answer; the replay service of {run_dir} does, and waits for Redis",
        redis_that_is_away,
    ),
    Shown(
        {metric("replay_redis_wait_seconds", why="away"): positive},
        "Redis does not answer; the replay service of {run_dir} does, and waits for Redis",
        redis_that_is_silent,
    ),
    Shown(
        {metric("actor_redis_wait_seconds", why="memory"): positive, metric("actor_redis_outages_total"): 1},
        "Redis is full, and what is done waits to be stored: give it more memory",
        redis_without_memory,
    ),
    Shown(
        {
            metric("actor_redis_wait_seconds", why="disk"): positive,
            metric("replay_redis_wait_seconds", why="disk"): positive,
            metric("replay_redis_wait_seconds", why="memory"): 0,
        },
        "Redis cannot write to its disk, and takes nothing more until it can: make room there. "
        "waiting for Redis, which refuses writes until it can add to its append-only file",
        redis_without_room,
    ),
    Shown({metric("learner_disk_wait_seconds"): positive}, "learner: no room in {run_dir}", a_learner_without_room),
    Shown(
        {metric("actor_canary_refusals_total"): 1},
        "refused weights 0.1: the canary is off by 0.4",
        a_refused_version,
    ),
    Shown(
        {metric("actor_canary_refusals_total"): 1}, "refused weights 0.0: weights {run_dir}/weights/", a_damaged_version
    ),
    *(
        Shown(
            {metric("actor_env_failures_total"): 2, metric("actor_retrieval_failures_total"): positive},
            "the environment did not answer 2 rollouts, which are masked out and never scored: see env.url; "
            f"the last one because http://127.0.0.1:PORT gave no result in 1 try ({why})",
            Retriever(name, status, body, wait_s),
        )
        for name, status, body, wait_s, why in (
            ("a_retriever_that_answers_html", b"200", b"<html>", 0, "the answer is not JSON"),
            ("a_retriever_that_answers_500", b"500", b"<html>", 0, "status 500"),
            ("a_retriever_that_is_slow", b"200", b'{"result": []}', 3, "no answer within env.timeout_s = 2 s"),
            (
                "a_retriever_with_huge_documents",
                b"200",
                b"[" + b" " * MB,
                0,
                f"an answer of more than {MB} bytes",
            ),
        )
    ),
    *(
        Shown(
            {metric("actor_reward_failures_total"): 2},
            f"the reward of 2 rollouts failed, which are masked out; the last one {how}",
            Reward(name, body),
        )
        for name, body, how in (
            ("a_reward_that_raises", "1 / 0", "raised ZeroDivisionError: division by zero"),
            ("a_reward_that_hangs", "time.sleep(60)", "has taken more than 0.5 s, or its process died"),
            ("a_reward_of_nan", "return float('nan')", "is nan, which is no reward"),
            ("a_reward_that_is_text", "return 'good'", "is 'good', which is no reward"),
        )
    ),
    Shown(
        {metric("actor_groups_total", outcome="failed"): 1},
        "group t0 failed: 0 of 2 rollouts could be scored",
        Reward("a_reward_of_none", "return None"),
    ),
    Shown(
        {metric("replay_live_actors"): 0},
        "ends: the scripted engine has sampled nothing for 2 s while it had work",
        an_engine_that_hangs,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: getattr(fault.begins, "name", None) or fault.begins.__name__
)
async def test_a_fault_shows_in_a_metric_and_in_a_sentence(fault: Shown, world: World) -> None:
    before = {(name, labels): world.value(name, **dict(labels)) for name, labels in fault.metrics}

    def shown() -> bool:
        for (name, labels), expected in fault.metrics.items():
            grown = world.value(name, **dict(labels)) - before[name, labels]
            if not (expected(grown) if callable(expected) else grown == expected):
                return False
        return True

    sentence = fault.sentence.format(run_dir=world.config.run_dir)
    async with fault.begins(world):
        await until(shown)
        said, deadline = "", time.monotonic() + WAIT_S
        while sentence.replace(" ", "") not in re.sub(r"127.0.0.1:\d+", "127.0.0.1:PORT", said.replace(" ", "")):
            assert time.monotonic() < deadline, said  # spaces: a terminal breaks lines
            said = await world.status()
        assert shown()
    for name, labels in fault.metrics:
        if name.endswith("wait_seconds"):
            await until(lambda name=name, labels=labels: world.value(name, **dict(labels)) == 0)
