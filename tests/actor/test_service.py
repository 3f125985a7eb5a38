"""Whole actors: real Redis, real retriever, a tiny random model."""

import asyncio
import os
import signal
import subprocess
import time
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from services.actor import service, tasks
from services.actor.engines.engine import EngineFailed, Generation, Sampling
from services.actor.service import serve
from shared.cancellation import stop
from shared.config import Config
from shared.events import parse
from shared.messages import EVAL, FINISHED, TRUNCATED, WeightsNotice, encode
from shared.payload import decode_payload
from shared.redis_client import connect
from shared.streams import ACTORS, SyncInbox, add
from shared.versions import Version
from tests.actor.running import (
    KEYS,
    announce,
    free_port,
    headers,
    heartbeats,
    make_task,
    pending,
    ready,
    send,
    start_search,
    wait_for,
)
from tests.actor.scripted_engine import ScriptedEngine


@pytest.fixture
def config(make_config, redis_url: str, search_url: str) -> Config:
    return make_config(redis={"url": redis_url}, env={"url": search_url})


@pytest.mark.slow
def test_tasks_become_groups_that_hold_what_their_headers_say(
    client, config, start_actor, publish, model_dir, full_logprobs
):
    from services.actor.text import Codec

    codec = Codec(model_dir)
    first = publish(0, seed=0)  # before the actor loads its model: transformers patches torch for the whole process
    start_actor(config)
    announce(client, first)
    send(client, *(make_task(i) for i in range(12)))
    send(client, make_task(100, kind=EVAL, group_size=1, temperature=0.0, round=0))
    found = headers(client, 13)
    assert pending(client) == 0 and client.xlen(KEYS.tasks) == 0

    searched = 0
    for header in found[:12]:
        assert header.usable, header.failure
        p = decode_payload(client.get(KEYS.payload(header.id)), "test")
        assert header.payload_bytes == client.strlen(KEYS.payload(header.id))
        assert header.sampled_tokens == [p.rollout(i)[1].sum() for i in range(4)]
        assert header.total_tokens == p.lengths.tolist()
        assert header.signs == np.sign(p.advantages).tolist()
        assert header.version_min == header.version_max == Version(0, 0)
        assert header.fingerprints["index"]
        assert set(header.statuses) <= {FINISHED, TRUNCATED}
        assert codec.decode(p.prompt.tolist()) == "<|user|> x y a ? <|end|> <|assistant|>"
        texts = [codec.decode(p.rollout(i)[0].tolist()) for i in range(4)]
        assert len(set(texts)) == 4  # seeds differ
        at = 0
        for i in range(4):
            ids, mask = p.rollout(i)
            truth = np.array(full_logprobs(model_dir, [*p.prompt.tolist(), *ids.tolist()], len(p.prompt)))
            ours = p.l_gen[at : at + mask.sum()]
            at += mask.sum()
            assert np.abs(ours - truth[mask]).max() < 1e-5
            turns = [(a, b) for r, a, b in p.turns.tolist() if r == i]
            assert [k for a, b in turns for k in range(a, b)] == np.flatnonzero(mask).tolist()
            assert len(p.documents[i]) == header.searches[i] == codec.decode(ids[~mask].tolist()).count("<information>")
            searched += header.searches[i]
    assert searched > 0
    evaluation = found[12]
    assert evaluation.kind == EVAL and evaluation.round == 0 and evaluation.usable
    assert client.exists(KEYS.payload("t100")) == 0

    beat = heartbeats(client)[0]
    assert beat["version"] == [0, 0] and beat["engine"] == "torch" and beat["pid"] == os.getpid()
    assert "headrace_actor_sampled_tokens_total" in httpx.get(f"http://127.0.0.1:{beat['port']}/metrics").text
    kinds = [e["kind"] for _, e in parse(client.xrange(KEYS.events))]
    assert kinds.count("rollout") == 1 and kinds.count("swap") == 1


@pytest.mark.slow
def test_weights_change_while_groups_run_and_old_tasks_wait_for_them(client, config, start_actor, publish):
    send(client, *(make_task(i) for i in range(4)), make_task(4, min_version=1))
    first = publish(0, seed=0)  # before the actor loads its model: transformers patches torch for the whole process
    start_actor(config)
    announce(client, first)
    early = headers(client, 4)
    assert {h.version_max for h in early} == {Version(0, 0)}
    bad = announce(client, publish(1, seed=1, canary_seed=2))
    wait_for("the refusal", lambda: [b for b in heartbeats(client) if b["canary_refused"]] or None)
    assert heartbeats(client)[0]["version"] == [0, 0]
    good = announce(client, publish(2, seed=1))
    assert headers(client, 5)[4].version_min == good.version
    told = [e for _, e in parse(client.xrange(KEYS.events)) if e["kind"] == "refused"]
    assert told[0]["version"] == str(bad.version) and "nats" in told[0]["reason"]


@pytest.mark.slow
def test_a_task_given_to_two_actors_is_stored_once(client, config, start_actor, publish):
    task = make_task(1)
    announce(client, publish(0, seed=0))
    for count in (1, 2):  # one after the other, for the same reason
        start_actor(config)
        wait_for("an actor", lambda count=count: ready(client) == count or None)
    send(client, task, task)
    headers(client, 1)
    wait_for("both entries to be done", lambda: True if client.xlen(KEYS.tasks) == 0 else None)
    assert client.xlen(KEYS.groups) == 1


@pytest.mark.slow
def test_sigterm_hands_the_tasks_back_at_once(client, config, start_process, start_actor, publish):
    endless = make_config_endless(config)
    announce(client, publish(0, seed=0))
    first = start_process(endless)
    send(client, *(make_task(i, group_size=128) for i in range(3)))
    wait_for("running groups", lambda: True if any(b["groups_running"] == 3 for b in heartbeats(client)) else None)
    started = time.monotonic()
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    assert time.monotonic() - started < 5
    assert not heartbeats(client)
    assert len(idle_ms(client)) == 3 and min(idle_ms(client)) >= tasks.RECLAIM_MS, "whoever looks next takes them"
    start_actor(config)
    started = time.monotonic()
    headers(client, 3)
    assert time.monotonic() - started < 30


@pytest.mark.slow
def test_a_password_that_changes_meanwhile_ends_it_with_one_sentence(
    client, make_config, redis_url, start_process, change_password, capfd
):
    actor = start_process(make_config(redis={"url": redis_url}, env={"kind": "single"}))
    wait_for("it to run", lambda: any(beat["state"] == "running" for beat in heartbeats(client)) or None)
    change_password()
    assert actor.wait(60) == 2
    said = capfd.readouterr().err
    assert said.splitlines()[-1] == "actor: Redis refuses the password: put the right one into redis.url."
    assert "Traceback" not in said


class NeverAnswers(ScriptedEngine):
    """Its turns end with the process."""

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        return await asyncio.get_running_loop().create_future()


@pytest.mark.slow
async def test_an_engine_that_fails_while_redis_is_away_is_what_ends_the_actor(client, config, monkeypatch):
    class Fails(ScriptedEngine):
        async def start(self) -> None:
            client.client_pause(800)  # ms: longer than the actor has for its last word
            raise EngineFailed("dead")

    monkeypatch.setattr(service, "LEAVE_S", 0.2)
    with pytest.raises(EngineFailed, match="dead"):
        await serve(config, Fails(lambda ids, sampling: ([], "eos")))


@pytest.mark.slow
async def test_a_hand_back_outlives_a_redis_that_is_slow_to_answer(client, config):
    version = Version(0, 0)
    notice = WeightsNotice(version=version, location="v", digest="", size=0, published=0.0, canary=[])
    (config.weights_dir / "v").mkdir(parents=True)
    add(client, KEYS.weights, encode(notice))
    actor = asyncio.create_task(serve(config, NeverAnswers(lambda ids, sampling: ([], "eos"))))
    send(client, *(make_task(i) for i in range(3)))
    async with asyncio.timeout(60):
        while not any(beat["groups_running"] == 3 for beat in heartbeats(client)):
            await asyncio.sleep(0.02)
        assert max(idle_ms(client)) < tasks.RECLAIM_MS
        client.client_pause(500)  # ms; a quarter of what the actor has for it, and longer than until it is asked again
        await stop(actor)
    assert len(idle_ms(client)) == 3 and min(idle_ms(client)) >= tasks.RECLAIM_MS
    assert not heartbeats(client)


@pytest.mark.slow
async def test_a_full_server_keeps_nobody_from_renewing(client, make_config, redis_url, publish):
    config = make_config(redis={"url": redis_url}, env={"kind": "single"}, actor={"heartbeat_s": 0.2})
    announce(client, publish(0, seed=0))
    actor = asyncio.create_task(serve(config, NeverAnswers(lambda ids, sampling: ([], "eos"))))
    send(client, make_task(0))
    try:
        async with asyncio.timeout(60):
            while not any(beat["groups_running"] == 1 for beat in heartbeats(client)):
                await asyncio.sleep(0.02)
            client.config_set("maxmemory", 1)
            renewed = 0
            while renewed < 3:
                before = idle_ms(client)[0]
                await asyncio.sleep(0.02)
                renewed += idle_ms(client)[0] < before
    finally:
        client.config_set("maxmemory", 0)
        await stop(actor)


def idle_ms(client: redis.Redis) -> list[int]:
    """How long the tasks that are with an actor have not been renewed."""
    entries: Any = client.xpending_range(KEYS.tasks, ACTORS, "-", "+", 100)
    return [entry["time_since_delivered"] for entry in entries]


def make_config_endless(config: Config) -> Config:
    """One turn of hundreds of tokens in many rows: seconds of work, of whose beginning it is heard soon."""
    from shared.config import build

    tree = config.model_dump()
    tree["actor"] |= {"heartbeat_s": 0.2}
    tree["env"] |= {"kind": "single"}
    tree["rollout"] |= {"max_tokens": 500, "max_turn_tokens": 400}
    return build(tree)


@pytest.mark.slow
def test_what_a_dead_actor_left_is_taken_over(client, config, start_actor, publish, monkeypatch):
    monkeypatch.setattr(tasks, "RECLAIM_MS", 1500)
    dead = SyncInbox(client, KEYS.tasks, ACTORS, "dead")
    dead.create()
    send(client, make_task(0))
    assert len(dead.read(1)) == 1
    announce(client, publish(0, seed=0))
    start_actor(config)
    assert headers(client, 1)[0].usable


@pytest.mark.slow
def test_a_malformed_task_is_buried_and_the_others_go_on(client, config, start_actor, publish):
    announce(client, publish(0, seed=0))
    add(client, KEYS.tasks, b"\x81garbage")
    send(
        client,
        make_task(0, group_size=1),
        make_task(1),
        make_task(2, messages=[{"role": "user", "content": "a " * 80}]),
    )
    start_actor(config)
    found = headers(client, 2)
    assert found[0].usable
    assert "max_prompt_tokens" in found[1].failure and not client.exists(KEYS.payload("t2"))
    letters = [fields[b"reason"].decode() for _, fields in client.xrange(KEYS.dead)]
    assert len(letters) == 2 and "group_size" in letters[1]


@pytest.mark.slow
def test_without_a_retriever_a_task_is_handed_back_and_answered_once_there_is_one(
    client, make_config, redis_url, start_actor, publish, tmp_path
):
    port = free_port()
    config = make_config(redis={"url": redis_url}, env={"url": f"http://127.0.0.1:{port}", "retries": 0})
    announce(client, publish(0, seed=0))
    send(client, make_task(0, group_size=8))
    start_actor(config)
    # without the retriever not even its index is known, so the task is given back instead of half done
    wait_for("the task to be handed back", lambda: _handed_back(client) or None)
    assert client.xlen(KEYS.groups) == 0 and pending(client) == 1
    search = start_search(tmp_path, port)
    try:
        (group,) = headers(client, 1)
    finally:
        search.terminate()
        search.wait(10)
    assert group.usable and group.id == "t0" and None not in group.rewards
    assert pending(client) == 0


@pytest.mark.slow
def test_redis_restarting_does_not_end_an_actor(config, start_actor, publish, tmp_path):
    from cli.run.redis_binary import find_redis_binary
    from shared.config import build

    port = free_port()
    command = [find_redis_binary().path, "--port", str(port), "--save", "", "--appendonly", "yes", "--dir", tmp_path]
    tree = config.model_dump()
    tree["redis"]["url"] = f"redis://127.0.0.1:{port}/0"
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        first = publish(0, seed=0)
        actor = start_actor(build(tree))
        with connect(tree["redis"]["url"]) as client:
            wait_for("Redis", lambda: _pings(client))
            announce(client, first)
            send(client, *(make_task(i) for i in range(4)))
            headers(client, 4)
            server.terminate()
            server.wait(10)
            time.sleep(1)
            assert actor.thread.is_alive()
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            wait_for("Redis", lambda: _pings(client))
            send(client, *(make_task(i) for i in range(4, 8)))
            assert all(h.usable for h in headers(client, 8))
    finally:
        server.terminate()
        server.wait(10)


def _handed_back(client: redis.Redis) -> list[str]:
    texts = [record.get("text", "") for _, record in parse(client.xrange(KEYS.events))]
    return [text for text in texts if "tasks were handed back, since the retriever did not say what it serves" in text]


def _pings(client: redis.Redis) -> bool | None:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return None
