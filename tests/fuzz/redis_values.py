"""What only holders of Redis's password can write: a run in a real Redis, one value of which is another.

It is read back by all who read it: replay at its start and through a step, its window, the learner, an actor, `status`,
`top`, the recorder of a session.
"""

import asyncio
import atexit
import contextlib
import io
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis
import redis.asyncio
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from rich.console import Console

from benchmarks.peers import made_record
from cli.deadletters import read_letters
from cli.glance import FromRedis
from cli.run.progress import line, table
from cli.run.redis_binary import find_redis_binary
from cli.run.summary import summarise
from cli.run.view import RunView
from cli.run.watching import waits
from cli.status import read_state
from cli.status_table import print_state
from cli.top_screen import frame
from services.actor.run_over import RunOver, raise_if_over
from services.learner.talk import lineage
from services.learner.talk.idle import waiting_text
from services.learner.weights.version_files import versions_in_use
from services.replay import damage, resync, transitions
from services.replay.buffer import StoredGroup
from services.replay.kept import Kept
from services.replay.records import Composed, FreshGroup, Outcome
from services.replay.service import Replay
from services.replay.silent import Silent
from services.replay.state import State, Store
from services.replay.tasks import eval_task, train_task
from services.replay.window import shown
from services.replay.window.actors import Actors
from services.replay.window.history import History
from shared import events, heartbeats, messages
from shared.config import Config, build
from shared.errors import UserError
from shared.messages import Checkpointed, Hello, Trained
from shared.redis_client import connect_async, wait_until_up
from shared.streams import FIELD, Keys, add, bury, saved_key
from shared.versions import Version
from tests.fuzz.folders import altered
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_FLOAT, ANY_INT, CLAIMS, near
from tests.fuzz.wire import HEADER
from tests.replay.peers import Questions

RUN, KEYS, STEP, B, G = "fuzzed", Keys("fuzzed"), 3, 2, 3
TABLES = ("tasks", "fresh", "buffer", "batches", "retired", "evals", "kept", "headers")
POLICIES = ("headroom_drift", "rollout_advantage", "exgrpo", "bapo")
BEAT = {
    "id": "host-1", "state": "running", "version": [0, STEP], "refused": None, "loading": [0, STEP], "engine": "torch",
    "device": "cpu", "pid": 7, "host": "host", "groups_running": 3, "sampled_tokens": 9, "tokens_per_s": 812.5,
    "swaps": 2, "canary_refused": 0, "port": 1, "memory": 9123, "time": 1.0,
}  # fmt: skip
NOTICE = messages.WeightsNotice(version=Version(0, STEP), location="v", digest="d", size=1, published=0.0, canary=[])


class Place(NamedTuple):
    """A value in Redis: of a string, of a hash's field, of a set's member or of a stream's last entry."""

    kind: str
    key: str
    field: bytes = b""


@cache
def url() -> str:
    """A Redis of this process's own, which ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
    command = [str(find_redis_binary().path), "--port", "0", "--unixsocket", str(folder / "s"), "--save", ""]
    server = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    atexit.register(lambda: (server.kill(), server.wait()))
    wait_until_up(url := f"unix://{folder}/s", 20.0)
    return url


@cache
def config_of(policy: str) -> Config:
    """Of the run, which goes on under any of POLICIES."""
    return build(
        {
            "run": {"name": RUN, "steps": 9},
            "redis": {"url": url()},
            "learner": {"batch": B},
            "rollout": {"group_size": G},
            "replay": {"policy": policy, "capacity": 3, "max_lag": 2},
        }
    )


def _header(id: str, number: int) -> messages.GroupHeader:
    versions = {"version_min": Version(0, STEP), "version_max": Version(0, STEP)}
    return msgspec.structs.replace(HEADER, id=id, number=number, **versions)


def _row(number: int) -> StoredGroup:
    return StoredGroup(
        id=f"t{number:08d}", sequence=number, step=1, headroom_ref=0.5, headroom=0.4, drift=0.01, uses=1, tokens=3,
        bytes=500, prompt=number, right=1, scored=2, reward_mean=0.5, reward_std=0.7, advantage=1.4,
        responses=[1.0, 0.0, 0.0],
    )  # fmt: skip


async def _fill() -> None:
    """A run whose step 3 is with the learner, while groups for step 4 arrive and a question is open."""
    config, questions = config_of(POLICIES[0]), Questions(50)
    async with contextlib.aclosing(connect_async(url())) as client:
        await client.flushall()
        store = Store(client, KEYS)
        await store.take_over()
        state = await store.load(time.time() - 60)
        async with store.transaction(state) as tx:
            c = state.counters
            c.step, c.version, c.issued, c.inserted, c.generated = STEP, Version(0, STEP), 12, 6, 10
            c.settled.below, c.evals, c.fingerprints = 6, [0], HEADER.fingerprints
            for number in (10, 11):
                task = train_task(config, questions, number, attempt=0, min_version=STEP)
                tx.put("tasks", task.id, task)
            tx.put("tasks", "e00000000-000001", eval_task(config, questions, 0, 1, attempt=0))
            tx.put("evals", "0:0", Outcome("d", 1.0, 1.0, Version(0, 0), Version(0, 0)))
            for number in range(6, 10):
                header = _header(f"t{number:08d}", number)
                tx.put("fresh", header.id, FreshGroup(header, STEP + 2))
                tx.keep_header(header)
            for number in (3, 4):
                tx.store(_row(number))
            tx.retire("t00000002", 500)
            tx.put("kept", "4", Kept(question=4, step=1, right=1, scored=3))
            fresh = ["t00000006", "t00000007"]
            stats = {"acceptance": 0.5, "correct_share": 0.5, "tokens_sampled": 9, "ages": [1, 2], "scanned": 3}
            batch = Composed(
                step=STEP, replay=["t00000003"], fresh=fresh, stats=stats, cursor=resync.cursor_after(state, fresh)
            )
            tx.put("batches", str(STEP), batch)
            tx.note({"step": 2, "version": Version(0, STEP), "replay": ["t00000003"], "fresh": []})
            learner = {"wait_s": 0.1, "step_s": 1.0, "replay_kl": 0.01, "engine_gap": 1e-5}
            tx.event("step", step=2, steps=9, version=Version(0, STEP), seconds=1.0, learner=learner, **stats)
            tx.event("eval", round=0, em=0.5, n=2, failed=0, reward=0.5, per_source={"d": 0.5}, version_min=[0, 0])
            tx.event("swap", actor="host-1", version="0.3", seconds=0.2, stall_s=0.1)
            tx.event("refused", actor="host-1", version="0.3", reason="the canary")
            tx.event("rollout", task_kind="eval", round=0, question="q", ground_truth=["a"], reward=1.0, text="x")
            tx.event("warning", service="replay", text="a warning")
            tx.event("resumed", service="replay", step=1)
            tx.event("finished", step=1, elapsed_s=2.0)
            add(tx.pipe, KEYS.weights, messages.encode(NOTICE))
            bury(tx.pipe, KEYS, "groups", "it is none", b"x")
            for key, value in ((saved_key(KEYS), 2), (lineage.lives_key(KEYS), 1)):
                tx.pipe.set(key, value)
            tx.pipe.sadd(KEYS.actors, "host-1")
            tx.pipe.set(KEYS.actor("host-1"), json.dumps(BEAT))
            tx.pipe.set(KEYS.replay, json.dumps({"waiting_for": "a", "waiting_s": 1.0, "refused": ["t00000004"]}))


@cache
def filled() -> tuple[dict[str, bytes], dict[Place, bytes]]:
    """Every key as Redis dumps it, and every value that stands in the place of another."""
    asyncio.run(_fill())
    places: dict[Place, bytes] = {}
    with redis.Redis.from_url(url()) as connected:
        client: Any = connected
        dumps: dict[str, Any] = {key.decode(): client.dump(key) for key in client.keys("*")}
        for key in dumps:
            match client.type(key):
                case b"string":
                    places[Place("string", key)] = client.get(key)
                case b"hash":
                    places |= {Place("hash", key, field): data for field, data in client.hgetall(key).items()}
                case b"stream":
                    places |= {Place("stream", key, id): f.get(FIELD, b"") for id, f in client.xrange(key)}
                case b"list":
                    places |= {Place("list", key): client.lindex(key, -1)}
                case _:
                    places |= {Place("set", key): client.srandmember(key)}
    return dumps, places


@st.composite
def values(draw: st.DrawFn) -> tuple[str, Place, bytes]:
    """The policy of the run, a place, and what lies there instead."""
    places = filled()[1]
    by_key: dict[str, list[Place]] = {}
    for place in places:
        by_key.setdefault(place.key, []).append(place)
    place = draw(st.sampled_from(by_key[draw(st.sampled_from(sorted(by_key)))]))
    data = places[place]
    decoders: list[tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = [
        (msgspec.json.decode, lambda v: json.dumps(v).encode()),
        (msgspec.msgpack.decode, msgspec.msgpack.encode),
    ]
    new = near(st.just(data), CLAIMS)
    for decode, encode in decoders:
        with contextlib.suppress(*messages.UNREADABLE):
            valid = decode(data)
            new |= altered(valid).map(lambda v, encode=encode: _or_nothing(encode, v))
            new |= renumbered(valid).map(lambda v, encode=encode: _or_nothing(encode, v))
            break
    if data.isdigit():
        new |= ANY_INT.map(lambda n: str(n).encode())
    return draw(st.sampled_from(POLICIES)), place, draw(new)


def _or_nothing(encode: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return encode(value)
    except (OverflowError, UnicodeEncodeError):
        return b""


@st.composite
def renumbered(draw: st.DrawFn, valid: Any) -> Any:
    """The same with other numbers in the place of one or a few."""
    if isinstance(valid, dict):
        name = draw(st.sampled_from(sorted(valid))) if valid else None
        return valid | ({name: draw(renumbered(valid[name]))} if valid else {})
    if isinstance(valid, list):
        return [draw(renumbered(one)) for one in valid]
    return draw(
        {int: ANY_INT, float: ANY_FLOAT, str: st.sampled_from(["", "t00000004", "x" * 9000])}.get(
            type(valid), st.just(valid)
        )
    )


def check_value(case: tuple[str, Place, bytes]) -> bool:
    """True where nobody had to leave it out, or to refuse it."""
    policy, place, data = case
    with redis.Redis.from_url(url()) as client:
        _put(client, place, data)
        said = "\n".join([*_commands(client), *_learner(client), *asyncio.run(_asynchronous(policy, place))])
    return "cannot be read" not in said and "no count" not in said


def restore(client: redis.Redis) -> None:
    """Put the run into the server, and nothing else."""
    with client.pipeline() as pipe:
        pipe.flushall()
        for key, dump in filled()[0].items():
            pipe.restore(key, 0, dump)
        pipe.execute()


def _put(client: redis.Redis, place: Place, data: bytes) -> None:
    places = filled()[1]
    restore(client)
    with client.pipeline() as pipe:
        if data != places[place]:
            match place.kind:
                case "string":
                    pipe.set(place.key, data)
                case "hash":
                    pipe.hset(place.key, mapping={place.field: data})  # pyright: ignore[reportArgumentType]
                case "stream":
                    pipe.xadd(place.key, {FIELD: data})
                case "list":
                    pipe.rpush(place.key, data)
                case _:
                    pipe.sadd(place.key, data)
        pipe.execute()


def _commands(client: redis.Redis) -> list[str]:
    """`status`, `deadletters`, and a session that records."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        state = read_state(client, RUN) | {"waiting_for": None}
        json.dumps(state)
        print_state("runs/fuzzed", state)
        print(read_letters(client, KEYS.dead, 5))
    records = [record for _, record in events.parse(client.xrange(KEYS.events))]
    view = RunView(RUN, 9, 0.0)
    for record in records:
        view.update(record)
    console = Console(file=io.StringIO(), markup=False)
    console.print(table(view, 1.0))
    line(view, 1.0)
    json.dumps(summarise(records))
    return [out.getvalue(), *(str(record.get("text")) for record in records)]


def _learner(client: redis.Redis) -> list[str]:
    versions_in_use(client, KEYS)
    waiting_text(client, KEYS, STEP, 9.0, 9.0)
    try:
        assert lineage.saved_step(client, KEYS) >= 0
        life = lineage.open_lineage(client, KEYS, -1)
        lineage.refuse_if_replaced(client, KEYS, life)
    except UserError as error:
        return [str(error)]
    return []


async def _asynchronous(policy: str, place: Place) -> list[str]:
    async with contextlib.aclosing(connect_async(url())) as client:
        said = await _people(client)
        with contextlib.suppress(RunOver):
            await raise_if_over(config_of(policy), client)
        try:
            return said + await _replay(client, policy, place)
        except UserError as error:
            return [*said, str(error)]


async def _people(client: redis.asyncio.Redis) -> list[str]:
    """Who looks at heartbeats and events: replay's watch and window, `top`, `watch`."""
    said = await Silent(client, KEYS).look()
    history = History(client, KEYS)
    await history.look()
    msgspec.json.encode([history.since(-1), await Actors(client, KEYS).alive()])
    waits(RunView(RUN, 9, 0.0), await heartbeats.of_replay(client, KEYS))
    source = FromRedis(url(), RUN)
    try:
        console = Console(file=io.StringIO(), markup=False)
        console.print(frame(await source.look(), 120))
    except UserError as error:
        said.append(str(error))
    finally:
        await source.close()
    return said


async def _replay(client: redis.asyncio.Redis, policy: str, place: Place) -> list[str]:
    """A start, then all that may happen in a step; what was not touched is there, and another start finds no damage."""
    config, questions = config_of(policy), Questions(50)
    replay = Replay(config, client, questions, None, CollectorRegistry())
    store = replay.store
    await store.take_over()
    state = await store.load(0.0)
    reasons = [f"{each.table} cannot be read: {each.reason}" for each in state.damaged]
    assert len(reasons) <= 1 and _there(state, place), reasons
    async with store.transaction(state) as tx:
        damage.mend(state, tx)
        resync.ask(state, tx)
    state = await store.load(0.0)
    assert not state.damaged
    replay.state = state
    msgspec.json.encode([shown.now(replay, state), shown.groups(replay, state)])
    for id in state.fresh:
        await store.header(id)
    done = Trained(
        step=STEP,
        version=Version(0, STEP + 1),
        records=[made_record("t00000003", 8, 0.5, 0.1)],
        rejected=[],
        metrics={},
    )
    async with store.transaction(state) as tx:
        with contextlib.suppress(messages.Malformed):  # there is no such batch any more
            transitions.step_trained(config, state, tx, replay.policy, len(questions), done, 1.0)
        with contextlib.suppress(messages.Malformed):  # it is of another task than the one that is there now
            transitions.group_arrived(config, state, tx, replay.policy, _header("t00000010", 10))
        if task := state.tasks.get("t00000011"):
            transitions.task_vanished(config, state, tx, task)
        resync.learner_said_hello(config, state, tx, questions, Hello(version=Version(1, STEP + 1)))
        transitions.checkpoint_written(state, tx, Checkpointed(version=Version(1, STEP + 1), step=STEP))
        transitions.issue_tasks(config, state, tx, replay.policy, questions)
        transitions.issue_questions(config, state, tx, questions, 1)
    assert not (await store.load(0.0)).damaged
    return reasons


def _there(state: State, place: Place) -> bool:
    """Whether every entry of a table is there, but for the one that was touched."""
    there = [
        state.tasks,
        state.fresh,
        [row.id for row in state.buffer],
        state.batches,
        state.retired,
        state.evals,
        state.kept,
    ]
    names = {(name, str(field)) for name, table in zip(TABLES, there, strict=False) for field in table}
    wanted = {(place.key.rpartition(":")[2], place.field.decode()) for place in filled()[1] if place.kind == "hash"}
    wanted -= {(name, field) for name, field in wanted if name == "headers"}
    return wanted - {(place.key.rpartition(":")[2], place.field.decode())} <= names


TARGETS = [Target("values in Redis", st.deferred(values), check_value, cost=20, warm=filled)]
