"""`headrace top`: the same frame from a replay service and from Redis alone; keys; what it says where nothing runs."""

import asyncio
import os
import pty
import select
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from rich.console import Console
from tokenizers import Tokenizer

from cli.glance import FromRedis, FromReplay, Glance, Unanswered, left
from cli.main import main
from cli.status import Target, _waiting_for
from cli.top_screen import _gap, frame, scatter, sparkline
from services.replay.http import make_app
from services.replay.service import Replay
from shared import heartbeats
from shared.cancellation import stop
from shared.config import Config, build
from shared.errors import UserError
from shared.http_server import listen, serve_http
from shared.streams import Keys
from tests.replay.peers import Questions, client_of
from tests.replay.stored_groups import STEP, fill

REPOSITORY = Path(__file__).resolve().parents[2]
TOKENIZER = REPOSITORY / "examples" / "atlas" / "policy" / "tokenizer.json"


@pytest_asyncio.fixture
async def config(redis_url: str) -> Config:
    """A run of 40 steps with 60 stored groups."""
    made = build(
        {"run": {"name": "seen"}, "redis": {"url": redis_url}, "learner": {"batch": 64}, "replay": {"capacity": 256}}
    )
    await fill(client_of(redis_url), made, Tokenizer.from_file(str(TOKENIZER)), 60, 2)
    return made


@pytest_asyncio.fixture
async def address(config: Config, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Where a replay service of this run listens; it has reported."""
    monkeypatch.setattr("services.replay.service.WATCH_S", 0.05)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # which is for other addresses
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    service = Replay(config, client_of(config.redis.url), Questions(100), None, CollectorRegistry())
    sock = listen("127.0.0.1", 0, "replay.port")
    port = sock.getsockname()[1]
    tasks = [asyncio.create_task(serve_http(make_app(service), sock)), asyncio.create_task(service.run())]
    async with asyncio.timeout(20):
        while service.state is None:
            await asyncio.sleep(0.01)
        service.last_selection = STEP - 1, frozenset(), frozenset(row.id for row in list(service.state.buffer)[:3])
        while not (await beat(config)).get("refused"):
            await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    await stop(*tasks)


async def beat(config: Config) -> heartbeats.Beat:
    return await heartbeats.of_replay(client_of(config.redis.url), Keys(config.run.name)) or {}


def text_of(glance: Glance, width: int = 100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(frame(glance, width))
    return captured.get()


async def test_replay_and_redis_tell_the_same(config: Config, address: str) -> None:
    sources = [FromReplay(address), FromRedis(config.redis.url, "seen")]
    one, other = [await source.look() for source in sources]
    for source in sources:
        await source.close()
    for field in ("name", "step", "steps", "version", "waiting_for", "buffer", "columns", "evals", "actors"):
        assert getattr(one, field) == getattr(other, field), field
    assert one.step == STEP and len(one.groups["drift"]) == 60
    assert sorted(one.groups["headroom"]) == pytest.approx(sorted(other.groups["headroom"]), abs=1e-4)
    assert (one.tau, one.policy) == (0.01, "headroom_drift")
    assert one.waiting_for and sorted(one.groups["mark"]) == sorted(other.groups["mark"]) == [0] * 57 + [1] * 3


async def test_the_command_prints_one_frame(
    config: Config, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for words in (["top", address, "--once"], ["top", "--redis", config.redis.url, "--run", "seen", "--once"]):
        assert await asyncio.to_thread(main, words) == 0
        said = capsys.readouterr().out
        for shown in ("40 of 100 steps", "learner idle", "acceptance", "replay KL", "35.0 → 71.0 %", "host-1-abc"):
            assert shown in said
        assert "a warning that <b>holds</b> markup" in said
        assert "Replay waits for the learner" in said


async def test_where_nothing_runs_it_says_so(
    config: Config, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await asyncio.to_thread(main, ["top", "--redis", config.redis.url, "--run", "seen", "--once"]) == 0
    assert "Replay waits for a replay service to report" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["top", "http://127.0.0.1:9", "--once"]) == 1
    assert "no replay service answers" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["top", "--redis", config.redis.url, "--run", "unknown", "--once"]) == 2
    assert "knows no run 'unknown'" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["top", "--redis", "redis://127.0.0.1:9/0", "--run", "x", "--once"]) == 1
    monkeypatch.chdir(tmp_path)
    assert await asyncio.to_thread(main, ["top"]) == 2
    assert "there is no run under" in capsys.readouterr().err


@pytest.mark.parametrize("body", ["hello", '"ok"', "{}", "[1]", "null"])
async def test_an_address_of_something_else_is_not_taken_for_replay(redis_url: str, body: str) -> None:
    server = await asyncio.start_server(partial(_speak_nonsense, body=body), "127.0.0.1", 0)
    source = FromReplay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(UserError) as refused:
        await source.look()
    assert not isinstance(refused.value, Unanswered)
    await source.close()
    server.close()


async def test_only_another_machine_is_asked_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = await asyncio.start_server(_speak_nonsense, "127.0.0.1", 0)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    said = []
    for url in ("http://replay.invalid:8001", "http://127.0.0.1:9"):
        source = FromReplay(url)
        with pytest.raises(UserError) as refused:
            await source.look()
        said.append(str(refused.value))
        await source.close()
    proxy.close()
    assert "does not answer as a replay service does" in said[0]
    assert "no replay service answers" in said[1]


@pytest.mark.parametrize("address", ["http://[bad", "http://127.0.0.1:99999", "http://"])
def test_what_is_no_address_is_told_in_a_sentence(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", address, "--once"]) == 2
    assert f"{address} is no address" in capsys.readouterr().err


@pytest.mark.parametrize("body", ['"ok"', "[1]", "{}"])
async def test_another_server_on_the_port_of_replay_says_nothing_of_the_run(tmp_path: Path, body: str) -> None:
    server = await asyncio.start_server(partial(_speak_nonsense, body=body), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (tmp_path / "config.toml").write_text(build({"replay": {"port": port}}).to_toml())
    assert await asyncio.to_thread(_waiting_for, Target("x", "redis://h", str(tmp_path))) is None
    server.close()


async def _speak_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: str = "hello") -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
    await writer.drain()
    writer.close()


async def test_q_leaves_and_the_terminal_is_as_before(config: Config) -> None:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-P", "-m", "cli.main", "top", "--redis", config.redis.url, "--run", "seen"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    try:
        seen = await asyncio.to_thread(_read_until, controller, b"host-1-abc", 60.0)
        assert b"40 of 100 steps" in seen
        os.write(controller, b"q")
        seen += await asyncio.to_thread(_read_until, controller, b"\x1b[?1049l", 20.0)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
        os.close(controller)
        os.close(terminal)


def _read_until(descriptor: int, awaited: bytes, within_s: float) -> bytes:
    deadline, seen = time.monotonic() + within_s, b""
    while awaited not in seen:
        assert time.monotonic() < deadline, seen.decode(errors="replace")
        if select.select([descriptor], [], [], 0.1)[0]:
            seen += os.read(descriptor, 65536)
    return seen


def test_a_sparkline_keeps_its_range_and_its_gaps() -> None:
    assert sparkline([0.0, None, 1.0]) == "▁ █"
    assert sparkline([0.0, 0.5, 2.0], 0, 1) == "▁▅█"
    assert sparkline([3.0, 3.0]) == "▁▁" and sparkline([None]) == "" and sparkline([]) == ""


def test_the_scatter_puts_groups_where_they_belong() -> None:
    lines = scatter([0.99, 0.01, 0.5], [1e-4, 1.0, None], [2, 1, 0], 1e-2, 40)
    assert {len(line) for line in lines} == {40}
    left_half = lines[0][:12]
    assert "●" in left_half and "○" in lines[-1][-4:], "low Drift left, high Drift right, high Headroom above"
    assert [line[0] for line in lines].count("·") == 1, "what was never scanned stands apart"
    gate = lines[3].index("┊")
    assert lines[0].index("●") < gate < lines[-1].index("○")
    assert scatter([], [], [], None, 40)[0] == " │" + " " * 38
    assert "●" in "".join(scatter([0.5], [0.0], [2], 0.0, 40)), "a Drift of zero has no logarithm and is at the left"


def test_text_of_the_run_is_not_markup_and_no_figure_is_needed() -> None:
    assert "[bold]x[/]" in text_of(Glance(name="[bold]x[/]"))
    glance = Glance(name="x", notices=[{"kind": "warning", "who": "a", "text": "[red]no[/red]", "time": 0.0}])
    assert "[red]no[/red]" in text_of(glance, 80)


def test_the_time_that_is_left_follows_the_last_steps() -> None:
    assert left(Glance(name="x", step=2, steps=10, columns={"seconds": [90.0, 2.0, 2.0]})) == 16.0
    assert left(Glance(name="x", step=1, steps=10, columns={"seconds": [2.0]})) is None


def test_the_engine_gap_is_held_against_the_learners_own_limit() -> None:
    columns = {"engine_gap": [2e-4], "engine_gap_limit": [1e-5]}  # a tenth of the square of tau = 0.01
    assert _gap(Glance(name="x", tau=0.01, columns=columns)) == "reaches 1e-05"
    assert _gap(Glance(name="x", tau=0.01, columns=columns | {"engine_gap_limit": [1e-3]})) == "below 0.001"
    assert _gap(Glance(name="x", columns=columns)) == ""
