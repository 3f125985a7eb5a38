"""Groups from a real Redis: read once, checked, kept within bounds."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import redis

from services.learner import assemble
from services.learner.groups.group import group_from_payload
from services.learner.groups.reader import CHUNK, GroupReader
from services.learner.ranks.members import Ranks
from shared.config import Config
from shared.messages import Part
from shared.payload import encode_payload
from shared.streams import Keys
from tests.tiny_model import CONTEXT, VOCABULARY

KEYS = Keys("test")


@pytest.fixture
def client(redis_url: str) -> Any:
    return redis.Redis.from_url(redis_url)


def reader_of(
    client: Any, *, cache_groups: int = 100, cache_bytes: int = 2**20, vocabulary: int = VOCABULARY
) -> GroupReader:
    bounds = {"cache_groups": cache_groups, "cache_bytes": cache_bytes}
    return GroupReader(client, KEYS, "test", **bounds, vocabulary=vocabulary, context=CONTEXT)


def put(client: Any, payload: Any, reference: Any = None) -> int:
    data = encode_payload(payload)
    client.set(KEYS.payload(payload.id), data)
    if reference is not None:
        client.set(KEYS.reference(payload.id), reference)
    return len(data)


def reasons(client: Any) -> list[str]:
    return [fields[b"reason"].decode() for _, fields in client.xrange(KEYS.dead)]


def test_groups_come_in_the_order_asked_for_with_their_reference(client: Any, make_payload: Any) -> None:
    payloads = {f"g{i}": make_payload(f"g{i}", i % 4) for i in range(40)}
    for p in payloads.values():
        put(client, p, (p.l_gen - 0.5).astype("<f4").tobytes())
    ids = sorted(payloads, reverse=True)
    fetched = reader_of(client).fetch(ids, reference=True)
    assert [g.id for g in fetched.groups] == ids
    assert fetched.refused == {}
    for g in fetched.groups:
        np.testing.assert_array_equal(g.l_gen.numpy(), payloads[g.id].l_gen)
        assert g.l_ref is not None
        np.testing.assert_array_equal(g.l_ref.numpy(), payloads[g.id].l_gen - np.float32(0.5))


def test_a_payload_is_read_once_for_its_scan_and_its_batch(client: Any, make_payload: Any) -> None:
    payload = make_payload("g", 1)
    size = put(client, payload, payload.l_gen.tobytes())
    reader = reader_of(client)
    reader.fetch(["g"], reference=True)
    reader.fetch(["g"], reference=True)
    assert reader.lap() == (size, 1, 0)
    assert reader.lap() == (0, 0, 0)


def test_what_another_rank_has_read_and_refused_is_counted_too(client: Any) -> None:
    reader = reader_of(client)
    reader.fetch(["gone"], reference=False)
    reader.read_elsewhere(10, 2, 3)
    assert reader.lap() == (10, 2, 4)


@pytest.mark.parametrize(("count", "reads"), [(1, 2), (2, 3)])
def test_ranks_share_the_memory_for_groups(
    config: Config, client: Any, model: Any, make_trainer: Any, make_payload: Any, count: int, reads: int
) -> None:
    for id in ("a", "b"):
        put(client, make_payload(id, 7))
    [group] = reader_of(client).fetch(["a"], reference=False).groups
    learner = config.learner.model_copy(update={"cache_bytes": 2 * group.bytes})
    trainer = replace(make_trainer(model), ranks=Ranks(count=count))
    reader = assemble.reader(config.model_copy(update={"learner": learner}), client, trainer)
    for _ in range(2):
        reader.fetch(["b", "a"], reference=False)
    assert reader.lap()[1] == reads  # with half of it there is room for one


@pytest.mark.parametrize("bound", ["bytes", "groups"])
def test_the_cache_is_bounded_and_drops_the_least_recently_used(client: Any, make_payload: Any, bound: str) -> None:
    for i in range(3):
        put(client, make_payload(f"g{i}", 7))
    [group] = reader_of(client).fetch(["g0"], reference=False).groups
    reader = reader_of(client, cache_bytes=2 * group.bytes) if bound == "bytes" else reader_of(client, cache_groups=2)
    for id in ("g0", "g1", "g0", "g2"):  # g1 goes
        reader.fetch([id], reference=False)
    reader.lap()
    reader.fetch(["g0", "g2"], reference=False)
    assert reader.lap()[1] == 0
    reader.fetch(["g1"], reference=False)
    assert reader.lap()[1] == 1


def test_the_bytes_of_a_group_are_those_that_it_takes_in_memory(make_payload: Any) -> None:
    small = make_payload("g", 7)
    many, rollouts = 2000, small.group_size
    wide = replace(
        small,
        lengths=np.full(rollouts, many, np.int32),
        tokens=np.full(rollouts * many, 5, np.int32),
        mask=np.ones(rollouts * many, bool),
        l_gen=np.zeros(rollouts * many, np.float32),
        version_runs=np.array([[rollouts * many, 0, 0]], np.int32),
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    groups = [group_from_payload(wide, VOCABULARY, 2 * many) for _ in range(8)]
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    l_ref = sum(4 * group.tokens for group in groups)
    assert sum(group.bytes for group in groups) == pytest.approx(taken + l_ref, rel=0.03)
    assert groups[0].bytes > 3 * len(encode_payload(wide))


def test_no_cache_at_all_still_serves(client: Any, make_payload: Any) -> None:
    put(client, make_payload("g", 1))
    reader = reader_of(client, cache_bytes=0)
    assert len(reader.fetch(["g"], reference=False).groups) == 1
    assert len(reader.fetch(["g"], reference=False).groups) == 1
    assert reader.lap()[1] == 2


def test_what_cannot_be_used_is_refused_with_a_reason_and_the_rest_is_served(client: Any, make_payload: Any) -> None:
    good = make_payload("good", 1)
    put(client, good, good.l_gen.tobytes())
    client.set(KEYS.payload("garbage"), b"\x93\x01\x02")
    client.set(KEYS.payload("named"), encode_payload(make_payload("other", 2)))
    put(client, replace(make_payload("foreign", 3), run="elsewhere"))
    put(client, replace(make_payload("wide", 4), prompt=np.array([5000], np.int32)))
    put(client, replace(make_payload("long", 5), prompt=np.full(CONTEXT, 5, np.int32)))
    put(client, make_payload("unreferenced", 6))
    put(client, make_payload("short", 7), b"\0" * 8)
    infinite = make_payload("infinite", 8)
    put(client, infinite, np.full(len(infinite.l_gen), -np.inf, "<f4").tobytes())
    ids = ["good", "garbage", "gone", "named", "foreign", "wide", "long", "unreferenced", "short", "infinite"]
    reader = reader_of(client)
    fetched = reader.fetch(ids, reference=True)
    assert [g.id for g in fetched.groups] == ["good"]
    assert list(fetched.refused) == [id for id in ids if id in fetched.refused]
    assert set(fetched.refused) == set(ids[1:])
    expected = {
        "garbage": "not a valid payload",
        "gone": "payload is gone",
        "named": "calls itself other",
        "foreign": "belongs to run 'elsewhere'",
        "wide": "token id 5000",
        "long": f"the model's context is {CONTEXT}",
        "unreferenced": "reference log-probabilities are gone",
        "short": "8 bytes of reference",
        "infinite": "not finite",
    }
    assert all(text in fetched.refused[id] for id, text in expected.items())
    assert sorted(reasons(client)) == sorted(fetched.refused.values())
    assert reader.dead_letters == len(expected)


def test_a_group_without_a_rollout_that_a_batch_names_is_a_dead_letter_too(client: Any, make_payload: Any) -> None:
    for id in ("g", "h"):
        put(client, make_payload(id, 3, rewards=[1.0, 0.0, None, 1.0]))
    reader = reader_of(client)
    fetched = reader.fetch(["g", "h"], reference=False, parts={"g": Part(rollouts=[2]), "h": Part(rollouts=[3])})
    assert [(g.id, g.numbers) for g in fetched.groups] == [("h", [3])]
    assert reasons(client) == [fetched.refused["g"]] == ["group g: rollout 2 of a batch has no trained tokens"]
    assert reader.lap()[2] == 1


def test_what_is_asked_again_because_redis_failed_is_buried_once(
    client: Any, make_payload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, make_payload("there", 1))
    reader, mget, asked = reader_of(client), client.mget, []

    def fails_the_second_time(keys: list[str]) -> Any:
        asked.append(keys)
        if len(asked) == 2:
            raise redis.ConnectionError
        return mget(keys)

    monkeypatch.setattr(client, "mget", fails_the_second_time)
    ids = [f"gone{i}" for i in range(CHUNK)] + ["there"]
    with pytest.raises(redis.ConnectionError):
        reader.fetch(ids, reference=False)
    assert [g.id for g in reader.fetch(ids, reference=False).groups] == ["there"]
    assert len(reasons(client)) == reader.lap()[2] == CHUNK


def test_an_unscored_rollout_has_no_row_but_keeps_the_others_aligned(client: Any, make_payload: Any) -> None:
    payload = make_payload("g", 9, rewards=[None, 1.0, 0.0, None])
    put(client, payload)
    group = reader_of(client).fetch(["g"], reference=False).groups[0]
    assert len(group.rows) == 2
    for row, i in zip(group.rows, (1, 2), strict=True):
        tokens, mask = payload.rollout(i)
        np.testing.assert_array_equal(row.tokens[row.positions], tokens[mask])
    assert [r.start for r in group.rows] == [0, len(group.rows[0].positions)]
