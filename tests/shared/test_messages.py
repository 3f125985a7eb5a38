"""The wire: what goes in comes out, and nothing malformed gets in."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import messages
from shared.messages import GroupHeader, Malformed, Scan, Trained
from shared.payload import Payload, decode_payload, encode_payload
from shared.versions import Version


def header(**changes) -> GroupHeader:
    fields: dict = dict(  # noqa: C408
        id="t1", kind="train", number=1, attempt=0, round=-1, actor="a", data_source="d", rewards=[1.0, None, 0.0],
        correct=[True, False, False], signs=[1, 0, -1], statuses=["finished", "env_failed", "truncated"],
        prompt_tokens=4, sampled_tokens=[3, 0, 2], total_tokens=[5, 1, 2], searches=[1, 0, 0],
        version_min=Version(0, 1), version_max=Version(0, 2), headroom=0.5, payload_bytes=100, seconds=1.0,
        env_seconds=0.1, fingerprints={},
    )  # fmt: skip
    return GroupHeader(**(fields | changes))


def payload(rng: np.random.Generator, groups: int = 3, run: str = "r") -> Payload:
    lengths = rng.integers(1, 9, groups).astype(np.int32)
    total = int(lengths.sum())
    mask = rng.random(total) < 0.6
    mask[0] = True
    trained = int(mask.sum())
    return Payload(
        id="t1", run=run, prompt=np.arange(5, dtype=np.int32), lengths=lengths,
        tokens=rng.integers(0, 1000, total).astype(np.int32), mask=mask,
        l_gen=-rng.random(trained).astype(np.float32), advantages=rng.standard_normal(groups).astype(np.float32),
        version_runs=np.array([[trained, 0, 3]], np.int32), turns=np.array([[0, 0, lengths[0]]], np.int32),
        documents=[[["d1", "d2"]], [], [["d3"]]][:groups] + [[]] * max(0, groups - 3),
    )  # fmt: skip


def test_a_header_comes_back_as_it_was():
    h = header(reward_parts={"form": (0.5, 2)})
    assert messages.decode(messages.encode(h), GroupHeader) == h
    assert h.mixed and h.scored == [1.0, 0.0]


def test_mixed_means_some_right_and_some_wrong_among_the_scored():
    assert not header(correct=[True, True, True]).mixed
    assert not header(correct=[True, False, True], rewards=[1.0, None, 1.0]).mixed
    # format reward alone does not make a group mixed
    assert not header(correct=[False, False, False], rewards=[0.2, 0.1, 0.0]).mixed


@pytest.mark.parametrize(
    "changes",
    [
        {"correct": [True]}, {"signs": [1, 0]}, {"statuses": ["finished"] * 2}, {"statuses": ["odd"] * 3},
        {"rewards": [float("nan"), 0.0, 1.0]}, {"headroom": float("inf")}, {"kind": "test"}, {"number": -1},
        {"payload_bytes": -5}, {"sampled_tokens": [-1, 0, 0]}, {"version_min": Version(0, 3)}, {"schema": 99},
        {"reward_parts": {"form": (float("nan"), 1)}}, {"reward_parts": {"form": (1.0, 4)}},
        {"reward_parts": {"form": (1.0, 0)}}, {"reward_parts": {"form": (3e6, 2)}},
    ],
)  # fmt: skip
def test_an_inconsistent_header_is_refused(changes):
    with pytest.raises(Malformed):
        messages.decode(messages.encode(header(**changes)), GroupHeader)


def test_an_unknown_field_and_another_type_are_refused():
    raw = msgspec.msgpack.decode(messages.encode(header()))
    with pytest.raises(Malformed):
        messages.decode(msgspec.msgpack.encode(raw | {"extra": 1}), GroupHeader)
    with pytest.raises(Malformed):
        messages.decode(messages.encode(Scan(scan="1", step=0, ids=[])), messages.Result)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_malformed(data):
    for kind in (GroupHeader, messages.Work, messages.Result, messages.Task):
        with pytest.raises(Malformed):
            messages.decode(data, kind)
    with pytest.raises(Malformed):
        decode_payload(data, "r")


def test_a_payload_comes_back_as_it_was():
    for seed in range(50):
        p = payload(np.random.default_rng(seed))
        q = decode_payload(encode_payload(p), "r")
        for name in ("prompt", "lengths", "tokens", "mask", "l_gen", "advantages", "version_runs", "turns"):
            assert np.array_equal(getattr(p, name), getattr(q, name)), name
        assert q.documents == p.documents


def broken_payloads():
    p = payload(np.random.default_rng(0))
    replace = lambda **changes: encode_payload(Payload(**(vars(p) | changes)))  # noqa: E731
    yield replace(lengths=p.lengths + 1)
    yield replace(lengths=-p.lengths)
    yield replace(l_gen=p.l_gen[:-1])
    yield replace(l_gen=np.full_like(p.l_gen, np.nan))
    yield replace(l_gen=np.full_like(p.l_gen, 0.5))
    yield replace(mask=np.zeros_like(p.mask), l_gen=p.l_gen[:0])
    yield replace(advantages=p.advantages[:1])
    yield replace(advantages=np.full_like(p.advantages, np.inf))
    yield replace(tokens=-p.tokens - 1)
    yield replace(prompt=p.prompt[:0])
    yield replace(version_runs=np.array([[1, 0, 0]], np.int32))
    yield replace(version_runs=np.array([[-1, 0, 0], [len(p.l_gen) + 1, 0, 0]], np.int32))
    yield replace(turns=np.array([[7, 0, 1]], np.int32))
    yield replace(turns=np.array([[0, 0, 100]], np.int32))
    yield encode_payload(p)[:-3]
    raw = msgspec.msgpack.decode(encode_payload(p))
    yield msgspec.msgpack.encode(raw | {"schema": 2})
    yield msgspec.msgpack.encode(raw | {"tokens": raw["tokens"][:-1]})
    yield msgspec.msgpack.encode(raw | {"lengths": np.full(3, 2**31 - 1, "<i4").tobytes()})  # 8 GB claimed
    yield encode_payload(payload(np.random.default_rng(0), run="another"))


@pytest.mark.parametrize("data", list(broken_payloads()))
def test_a_broken_payload_is_refused(data):
    with pytest.raises(Malformed):
        decode_payload(data, "r")


@given(st.integers(0, 2**31), st.integers(0, 5000))
def test_versions_sort_as_their_directories_do(lineage, number):
    a, b = Version(lineage % 9999, number), Version(lineage % 9999, number + 1)
    assert a < b and a.directory < b.directory and Version(0, 10**6) < Version(1, 0)


def test_trained_carries_its_version():
    t = Trained(step=3, version=Version(1, 4), records=[], rejected=[], metrics={"loss": 0.1})
    assert messages.decode(messages.encode(t), messages.Result) == t


SENSELESS = {
    "a lineage beyond all lives": messages.Hello(version=Version(2**31, 3)),
    "a version before the first": messages.Hello(version=Version(0, -1)),
    "a step before the first": Scan(scan="1", step=-1, ids=[]),
    "a step from far ahead": messages.Sync(step=2**40, batches=[]),
    "batches from far ahead": messages.Sync(step=1, batches=[1, 2**40]),
    "a step that made another step's version": Trained(
        step=3, version=Version(1, 9), records=[], rejected=[], metrics={}
    ),
    "more saved than trained": messages.Checkpointed(version=Version(0, 3), step=4),
    "a scan that took less than no time": messages.ScanResult(
        scan="1", step=1, version=Version(0, 1), records=[], seconds=-1.0
    ),
    "a group that is replayed in the step it is fresh in": messages.Batch(step=1, replay=["a"], fresh=["b", "a"]),
    "an advantage that is not finite": messages.Batch(
        step=1, replay=["a"], fresh=[], parts={"a": messages.Part(rollouts=[0], advantages=[float("nan")])}
    ),
}


@pytest.mark.parametrize("message", SENSELESS.values(), ids=SENSELESS)
def test_a_message_that_no_run_can_mean_is_refused(message: messages.Message):
    kind = messages.Work if isinstance(message, messages.Work) else messages.Result
    with pytest.raises(Malformed):
        messages.decode(messages.encode(message), kind)
