"""A server that a run cannot use is refused in one sentence that says what to do; one that is silent counts as away."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from shared import redis_client
from shared.errors import UserError
from shared.redis_client import RedisAway, wait_until_up
from shared.strangers import refuse_strangers
from shared.streams import Keys


def sentence(call: Callable[[], None]) -> str:
    """What is said: one line, one sentence."""
    with pytest.raises(UserError) as refused:
        call()
    said = str(refused.value)
    assert said.endswith(".") and ". " not in said and "\n" not in said
    return said


def test_a_wrong_password_and_none(redis_server_url: str) -> None:
    address = redis_server_url.rpartition("@")[2]
    for url in (f"redis://:wrong@{address}", f"redis://{address}"):
        said = sentence(lambda url=url: wait_until_up(url, 0.0))
        assert f"Redis at redis://{address} refuses the password: put the right one into redis.url" in said


def test_an_old_version(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "MINIMUM_VERSION", (99, 1))
    assert "and XAUTOCLAIM needs 99.1 or newer: upgrade it" in sentence(lambda: wait_until_up(redis_url, 0.0))


def test_a_database_number_that_is_not_there(redis_url: str) -> None:
    said = sentence(lambda: wait_until_up(redis_url.rpartition("/")[0] + "/99", 0.0))
    assert "out of range" in said and "mend redis.url" in said


def test_a_server_that_drops_keys_when_it_is_full(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", "1gb")
        try:
            wait_until_up(redis_url, 0.0)
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert "maxmemory-policy allkeys-lru" in sentence(lambda: wait_until_up(redis_url, 0.0))
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 0)


def test_what_is_no_redis() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        said = sentence(lambda: wait_until_up(f"redis://127.0.0.1:{port}/0", 0.0))
    assert f"redis://127.0.0.1:{port}/0" in said and "redis.url" in said


def test_one_that_takes_connections_and_is_silent_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "ANSWER_S", 0.2)
    began = time.monotonic()
    with answering(b"") as port, pytest.raises(RedisAway):
        wait_until_up(f"redis://127.0.0.1:{port}/0", 0.3)
    assert time.monotonic() - began < 5


@contextmanager
def answering(data: bytes) -> Iterator[int]:
    """A server that says this to everybody, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return
                if data:
                    taken[-1].recv(1000)
                    taken[-1].sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in taken:
            connection.close()


def test_a_database_with_keys_of_something_else_is_refused_and_one_with_runs_is_not(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        refuse_strangers(redis_url, "mine", new=True)
        client.set(Keys("other").state, "{}")
        refuse_strangers(redis_url, "mine", new=True)
        client.set("sessions:17", "x")
        said = sentence(lambda: refuse_strangers(redis_url, "mine", new=True))
        assert "holds 2 keys, and 'sessions:17' is none of ours: name an empty database" in said
        client.set(Keys("mine").state, "{}")  # it was accepted before the strangers came
        refuse_strangers(redis_url, "mine", new=False)


def test_a_new_run_under_the_name_of_one_that_is_there_is_refused(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(Keys("mine").state, "{}")
    said = sentence(lambda: refuse_strangers(redis_url, "mine", new=True))
    assert "holds a run named 'mine' already: choose another run.name" in said
