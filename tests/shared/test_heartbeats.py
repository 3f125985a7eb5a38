"""Heartbeats that are none."""

import json

import pytest
import redis

from shared import heartbeats
from shared.streams import Keys
from shared.versions import Version

KEYS = Keys("beating")


@pytest.mark.parametrize("beat", [b"\xff", b"[]", b"[" * 5000, b'{"version": [1]}', b'{"groups_running": "three"}'])
def test_a_heartbeat_that_cannot_be_read_is_as_good_as_none(redis_url: str, beat: bytes):
    with redis.Redis.from_url(redis_url) as client:
        client.sadd(KEYS.actors, "whole", "strange", b"\xff")
        client.set(KEYS.actor("whole"), json.dumps({"version": [0, 7], "of its own": [1]}))
        client.set(KEYS.actor("strange"), beat)
        known = heartbeats.known(client, KEYS)
    assert known == {"whole": {"version": [0, 7], "of its own": [1]}, "strange": None}
    assert heartbeats.versions(known.values()) == {Version(0, 7)}
