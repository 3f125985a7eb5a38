"""What replay may say that makes no sense: well-formed entries of `work`, for a learner in the middle of a run.

Scans, batches, questions and ends with steps that go back or far ahead, groups that are not there, are of another run
or stand twice, and parts of groups that have no such rollouts. A real learner of a tiny policy takes them.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import redis
import torch
from hypothesis import strategies as st

from services.learner.loop import Loop
from services.learner.stop import Stop
from services.learner.talk.sent_steps import SentSteps
from shared import messages, streams
from shared.config import build
from shared.messages import Batch, Cursor, Finish, Part, Scan, Sync
from shared.streams import FIELD, LEARNER, Keys
from tests.fuzz import redis_values
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_FLOAT, ANY_INT
from tests.fuzz.wire import RUN, payload_fields
from tests.tiny_model import write_model

KEYS, STEPS = Keys(RUN), 2**29
IDS = [f"t{n}" for n in range(1, 7)]
NEAR = st.integers(-3, 3)  # from the step that the learner is at
_STEP = NEAR | NEAR | ANY_INT.filter(lambda n: abs(n) > 100)
_GROUPS = st.lists(st.sampled_from([*IDS, "", "x" * 9000]), max_size=4)
_PARTS = st.builds(
    Part,
    rollouts=st.lists(st.integers(0, 2) | ANY_INT, max_size=4),
    advantages=st.none() | st.lists(ANY_FLOAT, max_size=4),
    joins=st.sampled_from(["", *IDS, "nobody"]),
)
_CURSORS = st.builds(Cursor, issued=ANY_INT, lost=ANY_INT, refilled=ANY_INT, untrained=st.lists(ANY_INT, max_size=3))
_WORK: st.SearchStrategy[messages.Message] = st.one_of(
    st.builds(Scan, scan=st.text(max_size=3), step=_STEP, ids=_GROUPS, per_rollout=st.booleans()),
    st.builds(
        Batch,
        step=st.just(0) | _STEP,
        replay=st.sampled_from([["t1"], ["t5"], []]),
        fresh=st.sampled_from([["t2", "t3"], ["t4", "t6"]]),
    ),
    st.builds(
        Batch,
        step=_STEP,
        replay=_GROUPS,
        fresh=_GROUPS,
        parts=st.dictionaries(st.sampled_from(IDS), _PARTS, max_size=3),
        cursor=st.none() | st.none() | _CURSORS,
    ),
    st.builds(Sync, step=_STEP, batches=st.lists(_STEP, max_size=4)),
    st.just(Finish()),
)


@cache
def _learner() -> Loop:
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
    config = build(
        {
            "run": {"name": RUN, "root": str(folder), "steps": STEPS},
            "model": {"path": str(write_model(folder / "policy", seed=1))},
            "learner": {"batch": 2, "threads": 1, "device": "cpu", "checkpoint_every": STEPS, "mini_batch": 2},
            "replay": {"select": 1},
            "redis": {"url": redis_values.url()},
        }
    )
    with redis.Redis.from_url(redis_values.url()) as client:
        client.flushall()
        loop = Loop(config, Stop())
        loop._announce()
    return loop


def _begin(loop: Loop, client: redis.Redis) -> None:
    """The server of a run in which nothing is on its way, and a learner that has read no group."""
    client.flushall()
    loop.inbox.create()
    loop._sent, loop._behind = SentSteps(), False
    loop._saving.open.clear()
    loop.reader._cache.clear()
    loop.reader._held = 0
    fields = payload_fields()
    for id in IDS[:4]:
        client.set(KEYS.payload(id), msgspec.msgpack.encode(fields | {"id": id}))
    client.set(KEYS.payload("t5"), msgspec.msgpack.encode(fields | {"id": "t5", "run": "another"}))
    for id in ("t1", "t2"):
        client.set(KEYS.reference(id), np.array([-0.1, -0.2, -0.3], "<f4").tobytes())


def _here(message: messages.Message, step: int) -> bytes:
    """Its steps counted from the one that the learner is at."""
    fields = msgspec.to_builtins(message)
    if "step" in fields:
        fields["step"] += step
    if "batches" in fields:
        fields["batches"] = [step + each for each in fields["batches"]]
    try:
        return msgspec.msgpack.encode(fields)
    except OverflowError:
        return b""


def check_work(said: list[messages.Message]) -> bool:
    """True where nothing was refused. Whatever is said, a step is trained by its own batch alone, what is answered can
    be read, and the weights stay finite.
    """
    loop = _learner()
    with redis.Redis.from_url(redis_values.url()) as client:
        _begin(loop, client)
        for message in said:
            step = loop.step
            streams.add(client, KEYS.work, _here(message, step))
            [entry] = loop.inbox.read(1, block_ms=1000)
            assert not loop.handle(entry), "the run is not over"
            jumps = isinstance(message, Sync)
            trains = isinstance(message, Batch) and message.step == 0
            assert step <= loop.step <= (STEPS if jumps else step + trains)
            left: Any = client.xpending(KEYS.work, LEARNER)
            assert left["pending"] == len(loop._saving.open), "it is acknowledged, or waits for a checkpoint"
            if isinstance(message, Batch) and loop.step == step + 1:
                assert not {*message.replay}.intersection(message.fresh), "nothing is replayed while it is fresh"
        told: Any = client.xrange(KEYS.results)
        for _, fields in told:
            messages.decode(fields[FIELD], messages.Result)
        assert all(torch.isfinite(p).all() for p in loop.trainer.model.parameters())
        return not client.exists(KEYS.dead)


TARGETS = [Target("work", st.lists(_WORK, min_size=1, max_size=4), check_work, cost=40, warm=_learner)]
