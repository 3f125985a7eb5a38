"""A Redis that can hold no run is told in one sentence before anything is started: away, strange, old, or forbidden."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
import uvicorn
from fastapi import FastAPI

from cli.main import main
from tests.redis_proxy import called_old, proxied


@pytest.mark.slow
def test_redis_that_is_down(refused: Callable[..., str], unused_port: int) -> None:
    said = refused("--redis.url", f"redis://:secret@127.0.0.1:{unused_port}/0")
    assert f"Redis at redis://127.0.0.1:{unused_port}/0 did not answer within 3 s" in said
    assert "secret" not in said


def test_redis_with_the_wrong_password(refused: Callable[..., str], redis_server_url: str) -> None:
    address = redis_server_url.rpartition("@")[2]
    said = refused("--redis.url", f"redis://:wrong@{address}")
    assert "refuses the password" in said
    assert ":wrong@" not in said


def test_a_redis_that_holds_something_else_names_a_key(refused: Callable[..., str], redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("headrace:{other}:replay:state", "{}")  # another run is no stranger
        client.set("session:42", "x")
    said = refused("--redis.url", redis_url)
    assert "holds 2 keys, and 'session:42' is none of ours: name an empty database" in said


def test_a_redis_that_holds_a_run_of_this_name(refused: Callable[..., str], redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("headrace:{test}:replay:state", "{}")
    assert "holds a run named 'test' already: choose another run.name" in refused("--redis.url", redis_url)


def test_a_redis_that_drops_keys_when_it_is_full(refused: Callable[..., str], redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", 2**30)
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            said = refused("--redis.url", redis_url)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 0)
    assert "drops keys when it is full (maxmemory-policy allkeys-lru)" in said and "set it to noeviction" in said


@contextmanager
def user_of(redis_url: str, *rules: str) -> Iterator[str]:
    """The address of the server for another user, who may do what `rules` say."""
    with redis.Redis.from_url(redis_url) as owner:
        owner.execute_command("ACL", "SETUSER", "other", "on", ">x", *rules)
        try:
            yield f"redis://other:x@{redis_url.rpartition('@')[2]}"
        finally:
            owner.execute_command("ACL", "DELUSER", "other")


@contextmanager
def replica_of(redis_url: str) -> Iterator[None]:
    """The server follows one that is not there: no byte is lost, and none is taken."""
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            yield
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")


def test_a_replica_is_refused_with_the_address_of_its_primary(refused: Callable[..., str], redis_url: str) -> None:
    with replica_of(redis_url):
        said = refused("--redis.url", redis_url)
    assert (
        "is a read-only replica, which stores nothing of a run: put its primary, 127.0.0.1:1, into redis.url." in said
    )


@pytest.mark.parametrize(
    "rules", [("~elsewhere:*", "+@all"), ("~*", "+@read", "+info", "+scan"), ("~*", "+@read", "+info", "+eval")]
)
def test_a_redis_user_without_the_rights_of_a_run(
    refused: Callable[..., str], redis_url: str, rules: tuple[str, ...]
) -> None:
    with user_of(redis_url, *rules) as url:
        said = refused("--redis.url", url)
    assert "forbids the user of redis.url what a run does (" in said and said.endswith(
        "allow it all commands and keys."
    )
    assert ":x@" not in said


def test_a_key_of_another_type_is_named(refused: Callable[..., str], redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("headrace:{test}:events", "mine")
    said = refused("--redis.url", redis_url)
    assert "headrace:{test}:events is a string, and a run keeps a stream there: delete the key, or choose" in said


@pytest.mark.parametrize("command", ["status", "deadletters"])
def test_looking_at_a_run_whose_keys_are_forbidden_or_of_another_type(
    command: str, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with user_of(redis_url, "~elsewhere:*", "+@all") as url:
        assert main([command, "--redis", url, "--run", "test"]) == 2
    assert re.fullmatch(rf"headrace: {command} cannot go on: Redis forbids the user .+\n", capsys.readouterr().err)
    with redis.Redis.from_url(redis_url) as client:
        for name in ("dead", "events", "actors"):
            client.lpush(f"headrace:{{test}}:{name}", "mine")
    assert main([command, "--redis", redis_url, "--run", "test"]) == 2
    assert re.fullmatch(
        rf"headrace: {command} cannot go on: Redis holds something else under .+\n", capsys.readouterr().err
    )


def test_a_web_server_in_the_place_of_redis(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(FastAPI(), log_level="critical"))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        serving.start()
        try:
            address = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
            assert f"what answers at {address} is no Redis for a run" in refused("--redis.url", address)
        finally:
            server.should_exit = True
            serving.join()


def test_a_redis_that_is_too_old(refused: Callable[..., str], redis_url: str) -> None:
    with proxied(redis_url, called_old) as url:
        said = refused("--redis.url", url)
    address = re.escape(url.rpartition("@")[2])
    needed = r"is version 5\.0\.\d+, and XAUTOCLAIM needs 6\.2 or newer: upgrade it\."
    assert re.fullmatch(rf"Redis at redis://{address} {needed}", said)
