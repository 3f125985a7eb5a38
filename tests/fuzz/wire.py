"""All that crosses Redis: messages, what replay does with a header it took, payloads up to the learner's tensors."""

from functools import cache
from typing import Any

import msgspec
import numpy as np
import redis
import torch
from hypothesis import strategies as st

from services.learner.groups.group import group_from_payload
from services.replay import transitions
from services.replay.policies import get_policy
from services.replay.records import Counters
from services.replay.rows import new_row
from services.replay.state import State, Transaction
from shared import messages
from shared.advantages import group_advantages
from shared.config import Config, build
from shared.messages import SCHEMA, GroupHeader, Malformed, Task
from shared.payload import decode_payload
from shared.streams import Keys
from shared.versions import Version
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_FLOAT, ANY_INT, CLAIMS, JSON, near

RUN, G = "fuzzed", 3
KINDS = {"tasks": Task, "groups": GroupHeader, "work": messages.Work, "results": messages.Result}
KINDS |= {"weights": messages.WeightsNotice}
TASK = Task(
    id="t1", kind="train", number=1, attempt=1, seed=3, group_size=G, temperature=1.0, min_version=2,
    data_source="d", messages=[{"role": "question", "content": "q"}], ground_truth=["a"],
)  # fmt: skip
HEADER = GroupHeader(
    id="t1", kind="train", number=1, attempt=0, round=-1, actor="a", data_source="d", rewards=[1.0, 0.0, None],
    correct=[True, False, False], signs=[1, -1, 0], statuses=["finished", "truncated", "timed_out"], prompt_tokens=3,
    sampled_tokens=[2, 1, 0], total_tokens=[3, 1, 0], searches=[1, 0, 0], version_min=Version(0, 2),
    version_max=Version(0, 3), headroom=0.4, payload_bytes=500, seconds=1.0, env_seconds=0.1, fingerprints={"t": "x"},
)  # fmt: skip
RECORD = messages.Record(
    id="t1", tokens=3, tokens_positive=2, tokens_negative=1, mean_p_positive=0.5, mean_p_negative=0.5, headroom=0.2,
    sum_d=0.1, sum_d2=0.1, max_abs_d=0.2, k3=0.1, dead_share=0.0,
)  # fmt: skip
VERSION = Version(0, 3)
VALID = {
    "tasks": [TASK],
    "groups": [HEADER],
    "work": [messages.Scan(scan="1", step=1, ids=["t1"]), messages.Batch(step=1, replay=[], fresh=["t1"])],
    "results": [
        messages.ScanResult(scan="1", step=1, version=VERSION, records=[RECORD], seconds=0.1),
        messages.Trained(step=2, version=VERSION, records=[RECORD], rejected=[], metrics={"loss": 0.1}),
        messages.Hello(version=VERSION),
    ],
    "weights": [
        messages.WeightsNotice(version=VERSION, location="v", digest="d", size=1, published=0.0, canary=[]),
    ],
}


@st.composite
def message_bytes(draw: st.DrawFn) -> tuple[str, bytes]:
    stream = draw(st.sampled_from(sorted(KINDS)))
    valid = messages.encode(draw(st.sampled_from(VALID[stream])))
    return stream, draw(near(st.just(valid), CLAIMS) | st.binary(max_size=40))


def check_message(case: tuple[str, bytes]) -> bool:
    stream, data = case
    try:
        message = messages.decode(data, KINDS[stream])
    except Malformed:
        return False
    assert messages.encode(messages.decode(messages.encode(message), KINDS[stream])) == messages.encode(message)
    return True


# values of the right type, most of them nonsense, so that they come past the types
_LIKE: dict[type, st.SearchStrategy[Any]] = {
    int: ANY_INT,
    float: ANY_FLOAT,
    str: st.sampled_from(["t1", "t2", "train", "eval", "again", "finished", "", "x" * 9000]),
    bool: st.booleans(),
}


def like(value: Any) -> st.SearchStrategy[Any]:
    """Other values of the same shape, and some that are not."""
    if isinstance(value, list | tuple):
        items = [like(item) for item in value]
        return st.tuples(*items).map(list) | (st.lists(items[0], max_size=5) if items else st.just([])) | JSON
    return _LIKE.get(type(value), JSON) | st.just(value)


@st.composite
def altered(draw: st.DrawFn, message: messages.Message) -> bytes:
    fields = msgspec.to_builtins(message)
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        fields[name] = draw(like(fields[name]))
    try:
        return msgspec.msgpack.encode(fields)
    except (OverflowError, UnicodeEncodeError):
        return b"\x80"


@cache
def _config() -> Config:
    return build({"run": {"name": RUN}, "rollout": {"group_size": G}, "replay": {"policy": "headroom_drift"}})


def check_header(data: bytes) -> bool:
    """A header that was taken must be one that replay can file, store, save and load again."""
    config, policy = _config(), get_policy("headroom_drift")
    state = State(Counters(started=0.0))
    state.counters.version, state.counters.step = Version(0, 3), 3
    state.tasks[TASK.id] = TASK
    pipe = redis.Redis().pipeline()  # connects to nothing
    tx = Transaction(state, Keys(RUN), pipe)
    try:
        header = messages.decode(data, GroupHeader)
        transitions.group_arrived(config, state, tx, policy, header)
    except Malformed:
        assert TASK.id in state.tasks and not state.fresh, "what is refused leaves no trace"
        return False
    finally:
        pipe.reset()
    for group in state.fresh.values():
        h = group.header
        row = new_row(1, 3, 1, h, h.payload_bytes, RECORD, group_advantages(h.rewards, "std"), [])
        state.buffer.insert(row)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state.buffer.row(h.id)), type=type(row)).id == h.id
        assert np.isfinite([row.reward_mean, row.reward_std, row.headroom]).all()
        assert 0 <= state.payload_bytes <= 2 * messages.PAYLOAD_BYTES
    msgspec.json.encode(state.counters)
    return True


def payload_fields() -> dict[str, Any]:
    """A small valid payload, as its msgpack map."""
    ints, floats = lambda *v: np.array(v, "<i4").tobytes(), lambda *v: np.array(v, "<f4").tobytes()
    return {
        "schema": SCHEMA, "id": "t1", "run": RUN, "prompt": ints(5, 6), "lengths": ints(3, 1, 0),
        "tokens": ints(7, 8, 9, 10), "mask": np.packbits([1, 0, 1, 1]).tobytes(), "l_gen": floats(-0.1, -0.2, -0.3),
        "advantages": floats(1, -1, 0), "version_runs": ints(2, 0, 1, 1, 0, 2),
        "turns": ints(0, 0, 1, 0, 2, 3, 1, 0, 1), "documents": [[["d"]], [], []],
    }  # fmt: skip


@np.errstate(over="ignore")  # what is too large becomes infinite
def _floats(values: list[float]) -> bytes:
    return np.array(values, "<f8").astype("<f4").tobytes()


_INTS = st.lists(st.integers(-2, 12) | st.sampled_from([2**31 - 1, -(2**31)]), max_size=12)
_ARRAYS = (
    _INTS.map(lambda v: np.array(v, "<i4").tobytes())
    | st.lists(ANY_FLOAT, max_size=6).map(_floats)
    | st.binary(max_size=9)
)


@st.composite
def right_payloads(draw: st.DrawFn) -> dict[str, Any]:
    """Groups of any shape that an actor could make."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    mask = draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))
    ones = sum(mask)
    first = draw(st.integers(0, ones))
    runs = [(count, 0, number) for number, count in enumerate((first, ones - first)) if count]
    arrays: dict[str, tuple[str, Any]] = {
        "prompt": ("<i4", draw(st.lists(st.integers(0, 99), min_size=1, max_size=4))),
        "lengths": ("<i4", lengths),
        "tokens": ("<i4", draw(st.lists(st.integers(0, 99), min_size=len(mask), max_size=len(mask)))),
        "l_gen": ("<f4", draw(st.lists(st.floats(-9, 0), min_size=ones, max_size=ones))),
        "advantages": ("<f4", draw(st.lists(st.floats(-3, 3), min_size=len(lengths), max_size=len(lengths)))),
        "version_runs": ("<i4", runs),
        "turns": ("<i4", [(i, 0, length) for i, length in enumerate(lengths)]),
    }
    made = {name: np.array(values, kind).tobytes() for name, (kind, values) in arrays.items()}
    return (
        payload_fields()
        | made
        | {"mask": np.packbits(np.array(mask, bool)).tobytes(), "documents": [[]] * len(lengths)}
    )


@st.composite
def payload_bytes(draw: st.DrawFn) -> bytes:
    fields = draw(right_payloads())
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=draw(st.sampled_from([0, 1, 2])))):
        fields[name] = draw(_ARRAYS if isinstance(fields[name], bytes) else like(fields[name]))
    try:
        data = msgspec.msgpack.encode(fields)
    except (OverflowError, UnicodeEncodeError):
        data = b""
    return draw(near(st.just(data), CLAIMS)) if draw(st.integers(0, 3)) == 0 else data


def check_payload(data: bytes) -> bool:
    """A payload that was taken must become rows and tensors a model can be given."""
    try:
        payload = decode_payload(data, RUN)
        group = group_from_payload(payload, vocabulary=100, longest=4096)
    except Malformed:
        return False
    assert torch.isfinite(group.l_gen).all() and torch.isfinite(group.advantages).all()
    assert len(group.l_gen) == len(group.advantages) == len(group.rollout) == payload.mask.sum()
    assert payload.version_runs[:, 0].sum() == group.tokens
    for row in group.rows:
        assert row.tokens.min() >= 0 and row.tokens.max() < 100
        assert row.positions.min() >= 1 and row.positions.max() < len(row.tokens)
    return True


def _headers() -> list[bytes]:
    return [messages.encode(HEADER)]


def _payloads() -> list[bytes]:
    return [msgspec.msgpack.encode(payload_fields())]


TARGETS = [
    Target("messages", message_bytes(), check_message, lambda data: check_message(("groups", data)), 1, _headers),
    Target("headers", altered(HEADER), check_header, check_header, 3, _headers),
    Target("payloads", payload_bytes(), check_payload, check_payload, 1, _payloads),
]
