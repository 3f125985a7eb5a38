"""What a service is put into before it is told to leave: a Redis of its own that is stopped, killed or full."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import redis

from cli.run.ports import free_port
from cli.run.redis_binary import find_redis_binary
from shared.redis_client import wait_until_up

STOP_S = 10.0  # what is promised
REDIS_STATES = ("stopped", "killed", "full")


class OwnRedis:
    """A server that a test may hurt."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process, self.url = process, url

    def fill(self) -> None:
        """Whatever takes memory is refused from now on."""
        with redis.Redis.from_url(self.url) as client:
            client.config_set("maxmemory", 1)

    def hurt(self, state: str, is_waited_for: Callable[[str], bool]) -> None:
        """Bring it into one of REDIS_STATES; returns when a service waits for it, by the `why` of its metric."""
        if state == "full":
            self.fill()
        else:
            self.process.send_signal(signal.SIGSTOP if state == "stopped" else signal.SIGKILL)
        if state == "stopped":
            time.sleep(1)  # every reader is in a call now; that it gets no answer is known much later
        else:
            until(lambda: is_waited_for("memory" if state == "full" else "away"), f"waiting for a {state} Redis")


@contextmanager
def own_redis(folder: Path) -> Iterator[OwnRedis]:
    """A server that keeps nothing."""
    port = free_port()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([str(find_redis_binary().path), *words], stdout=subprocess.DEVNULL)
    try:
        url = f"redis://127.0.0.1:{port}/0"
        wait_until_up(url, 20)
        yield OwnRedis(process, url)
    finally:
        process.kill()
        process.wait()


def metric(port: int, name: str) -> float:
    """The value of a sample; 0 where nobody serves it yet."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    except httpx.TransportError:
        return 0.0
    return float(text.partition(f"\n{name} ")[2].partition("\n")[0] or 0)


def redis_wait(service: str, port: int) -> Callable[[str], bool]:
    """Whether the service at this port waits for Redis, for a reason."""
    return lambda why: metric(port, f'headrace_{service}_redis_wait_seconds{{why="{why}"}}') > 0


def until(condition: Callable[[], object], what: str, within_s: float = 120.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {within_s:g} s"
        time.sleep(0.05)


def assert_leaves(process: subprocess.Popen) -> None:
    """In good order and in time."""
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_S) == 0
