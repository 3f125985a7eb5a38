"""What every test may ask for: a real Redis, the folder of shared data, a vLLM that imports."""

import fcntl
import importlib
import importlib.util
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from cli.run.redis_binary import find_redis_binary

# Set before anything reads them: no test may reach a model hub; vLLM's cache takes this many GiB.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

REPOSITORY = Path(__file__).resolve().parent.parent
REDIS_START_SECONDS = 10.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run; give the workers of pytest-xdist the longest files first, the `alone` last."""
    _skip_without_vllm(items)
    if _is_worker(config):
        alone = {item.path for item in items if item.get_closest_marker("alone")}
        longest: dict[Path, float] = {}
        for item in items:
            longest[item.path] = max(longest.get(item.path, 0.0), _at_most(item))
        items.sort(key=lambda item: (item.path in alone, -longest[item.path]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """While one worker runs a test that is marked `alone`, the others wait, before the time of their test counts."""
    if not _is_worker(item.config):
        return (yield)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


def _at_most(item: pytest.Item) -> float:
    """Seconds, where a test says them; else 1 for a slow one and 0 for the others."""
    limit = item.get_closest_marker("timeout")
    return limit.args[0] if limit else float(item.get_closest_marker("slow") is not None)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _skip_without_vllm(items: list[pytest.Item]) -> None:
    """Say why; HEADRACE_REQUIRE_VLLM=1 lets them fail."""
    marked = [item for item in items if item.get_closest_marker("vllm")]
    if not marked or os.environ.get("HEADRACE_REQUIRE_VLLM") == "1":
        return
    if importlib.util.find_spec("vllm") is None:
        reason = "vLLM is not installed on this machine: `headrace doctor` says what is missing"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _require_vllm(request: pytest.FixtureRequest) -> None:
    """Import vLLM before its tests: a broken install skips them, or fails them where CI requires it."""
    if request.node.get_closest_marker("vllm") is None:
        return
    try:
        importlib.import_module("vllm")
    except Exception as error:  # noqa: BLE001  a broken install raises anything: OSError, RuntimeError, ImportError
        sentence = f"vLLM does not import on this machine: {type(error).__name__}: {error}"
        if os.environ.get("HEADRACE_REQUIRE_VLLM") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture(scope="session")
def redis_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis with a password, alone on a free port, for the whole test session."""
    binary = find_redis_binary()
    folder = tmp_path_factory.mktemp("redis")
    password = secrets.token_hex(8)
    port = _free_port()
    command: list[str | Path] = [
        binary.path,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--requirepass",
        password,
    ]
    command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--dir", folder]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    try:
        _wait_for_redis(url, process, folder / "redis.log")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """URL of the session's Redis, emptied for this test."""
    with redis.Redis.from_url(redis_server_url) as client:
        client.flushall()
    return redis_server_url


@pytest.fixture
def change_password(redis_url: str) -> Iterator[Callable[[], None]]:
    """Gives the session's Redis another password and ends every connection; it has its own again behind the test."""
    own = redis_url.removeprefix("redis://:").partition("@")[0]
    with redis.Redis.from_url(redis_url) as client, redis.Redis.from_url(redis_url.replace(own, "other")) as after:

        def change() -> None:
            client.config_set("requirepass", "other")
            client.client_kill_filter(_type="normal", skipme=True)

        yield change
        with suppress(redis.AuthenticationError):  # it was not changed
            after.config_set("requirepass", own)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the public question and passage files that lie beside a development checkout."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the data folder {folder} is not on this machine")
    return folder


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_for_redis(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + REDIS_START_SECONDS
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
                return
            except redis.RedisError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Redis did not start: {log.read_text()}") from None
                time.sleep(0.05)
