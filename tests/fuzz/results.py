"""What a learner may say that makes no sense: well-formed entries of `results`, for replay in the middle of a run.

A story of three steps in which a word is missing, comes twice, or has other numbers, groups and versions than it had.
"""

import asyncio
import contextlib
from typing import Any

import msgspec
import redis
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from benchmarks.peers import made_record
from services.replay import resync
from services.replay.service import Replay
from services.replay.state import State
from services.replay.window import shown
from shared import events, messages
from shared.messages import Checkpointed, Cursor, Hello, ScanResult, Trained
from shared.redis_client import connect_async
from shared.streams import FIELD, Entry
from shared.versions import Version
from tests.fuzz import redis_values
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_FLOAT, ANY_INT
from tests.fuzz.redis_values import KEYS, POLICIES, STEP, B
from tests.replay.peers import Questions

CURSOR = Cursor(issued=14, lost=0, refilled=0, untrained=[10, 11, 12])
_IDS = [f"t{number:08d}" for number in (2, 3, 4, 6, 7, 8, 9, 10)]
_RECORDS = [made_record(id, 8, 0.5, 0.001) for id in _IDS]


def _trained(step: int) -> Trained:
    return Trained(
        step=step,
        version=Version(0, step + 1),
        records=_RECORDS[1:5],
        rejected=[_IDS[4]],
        metrics={"loss": 0.1, "replay_kl": 0.01},
    )


STORY = [
    Hello(version=Version(0, STEP), cursor=CURSOR),
    _trained(STEP),
    ScanResult(scan="0-1", step=STEP + 1, version=Version(0, STEP + 1), records=_RECORDS, seconds=0.1),
    Checkpointed(version=Version(0, STEP + 1), step=STEP + 1),
    _trained(STEP + 1),
    Hello(version=Version(1, STEP + 2), cursor=CURSOR, again=True),
]
_VALUES: dict[type, st.SearchStrategy[Any]] = {
    int: ANY_INT,
    float: ANY_FLOAT,
    bool: st.booleans(),
    str: st.sampled_from([*_IDS, "t00000099", "", "0-1", "0-2", "x" * 9000, "l1"]),
}


@st.composite
def _otherwise(draw: st.DrawFn, value: Any) -> Any:
    """The same shape with another value in one place, or with entries doubled or gone."""
    if isinstance(value, dict) and value:
        name = draw(st.sampled_from(sorted(value, key=str)))
        return value | {name: draw(_otherwise(value[name]))}
    if isinstance(value, list | tuple) and value:
        way = draw(st.sampled_from(["one", "one", "gone", "doubled"]))
        at = draw(st.integers(0, len(value) - 1))
        new = [draw(_otherwise(value[at]))] if way == "one" else [value[at]] * (2 * (way == "doubled"))
        return [*value[:at], *new, *value[at + 1 :]]
    return draw(_VALUES.get(type(value), st.just(value)))


@st.composite
def stories(draw: st.DrawFn) -> tuple[str, bool, list[bytes]]:
    """The policy of the run, whether its gate adapts, and what is said."""
    said = []
    for message in STORY[: draw(st.integers(1, len(STORY)))]:
        fields = msgspec.to_builtins(message)
        times = draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
        if draw(st.integers(0, 3)) == 0:
            fields.pop("cursor", None)
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            fields = draw(_otherwise(fields))
        with contextlib.suppress(OverflowError, UnicodeEncodeError):
            said += [msgspec.msgpack.encode(fields)] * times
    return draw(st.sampled_from(POLICIES)), draw(st.booleans()), said


def check_story(case: tuple[str, bool, list[bytes]]) -> bool:
    """True where nothing of it had to be refused."""
    policy, adapts, said = case
    with redis.Redis.from_url(redis_values.url()) as client:
        redis_values.restore(client)
        before = client.xlen(KEYS.dead)
        asyncio.run(_told(policy, adapts, said))
        for stream, kind in ((KEYS.work, messages.Work), (KEYS.tasks, messages.Task)):
            sent: Any = client.xrange(stream)
            assert len(sent) < 100, f"{len(sent)} entries of {stream}"
            for _, fields in sent:
                messages.decode(fields[FIELD], kind)
        for _, event in events.parse(client.xrange(KEYS.events)):
            assert "cannot be read" not in event.get("text", ""), event
        return client.xlen(KEYS.dead) == before


async def _told(policy: str, adapts: bool, said: list[bytes]) -> None:
    """Step and version never go back, whatever is said, and what is in Redis then can be read again."""
    config = redis_values.config_of(policy)
    tau = {"adaptive_tau": 1.0 if adapts and policy == "headroom_drift" else 0.0}
    config = config.model_copy(update={"replay": config.replay.model_copy(update=tau)})
    async with contextlib.aclosing(connect_async(redis_values.url())) as client:
        replay = Replay(config, client, Questions(50), None, CollectorRegistry())
        await replay.store.take_over()
        replay.state = state = await replay.store.load(0.0)
        for number, data in enumerate(said):
            was = _where(state)
            replay._then.clear()
            async with replay.store.transaction(state) as tx:
                replay._apply(state, tx, Entry(KEYS.results, f"{number + 1}-1".encode(), data))
                replay._advance(state, tx)
            for tell in replay._then:
                tell()
            replay.metrics.show(state)
            assert _where(state) >= was
            assert 0 <= state.counters.issued < 2**31 and state.payload_bytes >= 0
            assert len(state.fresh) <= 4 * B and len(state.buffer) <= config.replay.capacity
        loaded = await replay.store.load(0.0)
        assert not loaded.damaged and loaded.counters == state.counters
        assert (loaded.fresh, loaded.tasks, loaded.batches) == (state.fresh, state.tasks, state.batches)
        msgspec.json.encode([shown.now(replay, loaded), shown.groups(replay, loaded)])
        async with replay.store.transaction(loaded) as tx:
            resync.ask(loaded, tx)


def _where(state: State) -> tuple[int, Version]:
    return state.counters.step, state.counters.version or Version(-1, -1)


TARGETS = [Target("results", stories(), check_story, cost=20, warm=redis_values.filled)]
