"""Payloads that no honest actor writes, whose headers replay believed: refused before a tensor is made of them."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import redis

from services.learner.groups.reader import GroupReader
from shared.streams import Keys
from tests.fuzz.wire import RUN, payload_fields

KEYS = Keys(RUN)


def ints(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def field(name: str, value: Any) -> Callable[[], bytes]:
    return lambda: msgspec.msgpack.encode(payload_fields() | {name: value})


POISON: dict[str, tuple[Callable[[], bytes], str]] = {
    "NaN": (field("l_gen", floats(-0.1, float("nan"), -0.3)), "not finite"),
    "an infinite advantage": (field("advantages", floats(1, -float("inf"), 0)), "not finite"),
    "an advantage of 1e30": (field("advantages", floats(1, -1e30, 0)), "an advantage beyond"),
    "a log-probability of -1e30": (field("l_gen", floats(-0.1, -1e30, -0.3)), "a log-probability above 0 or below"),
    "a probability above 1": (field("l_gen", floats(-0.1, 0.5, -0.3)), "a log-probability above 0"),
    "negative lengths": (field("lengths", ints(-1, 5, 0)), "lengths do not add up"),
    "lengths that overflow": (field("lengths", ints(2**31 - 1, 2**31 - 1, 6)), "lengths do not add up"),
    "a negative token": (field("tokens", ints(7, -8, 9, 10)), "negative token id"),
    "a token of another model": (field("tokens", ints(7, 8, 9, 5000)), "token id 5000"),
    "versions of 2**31 tokens": (field("version_runs", ints(2**31 - 1, 0, 1)), "version runs cover"),
    "a turn outside its rollout": (field("turns", ints(0, 0, 4)), "outside its rollout"),
    "a mask that trains nothing": (field("mask", b"\0"), "no token to train on"),
    "another schema": (field("schema", 99), "schema 99"),
    "another run": (field("run", "elsewhere"), "belongs to run"),
    "another group": (field("id", "other"), "calls itself other"),
    "2 GB announced": (lambda: b"\x81\xa6tokens\xc6\x7f\xff\xff\xff", "not a valid payload"),
    "4e9 documents announced": (lambda: b"\x81\xa9documents\xdd\xff\xff\xff\xff", "not a valid payload"),
    "a pickle": (lambda: b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system", "not a valid"),
}


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def reader_of(client: Any, cache_bytes: int) -> GroupReader:
    bounds = {"cache_groups": 1, "cache_bytes": cache_bytes}
    return GroupReader(client, KEYS, RUN, **bounds, vocabulary=100, context=64)


def test_the_payload_they_are_made_from_is_taken(client: Any) -> None:
    client.set(KEYS.payload("t1"), field("id", "t1")())
    assert len(reader_of(client, 0).fetch(["t1"], reference=False).groups) == 1


@pytest.mark.parametrize("kind", POISON)
def test_a_poisoned_payload_is_refused_with_a_reason_and_costs_no_memory(client: Any, kind: str) -> None:
    make, reason = POISON[kind]
    client.set(KEYS.payload("t1"), make())
    before = psutil.Process().memory_info().rss
    fetched = reader_of(client, 2**20).fetch(["t1"], reference=False)
    assert not fetched.groups and reason in fetched.refused["t1"]
    assert psutil.Process().memory_info().rss - before < 64 * 2**20
    letters = client.xrange(KEYS.dead)
    assert [fields[b"reason"].decode() for _, fields in letters] == [fetched.refused["t1"]]
