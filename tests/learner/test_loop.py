"""The loop on a real Redis, entry by entry, with the crashes that the acknowledgements are there for."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import torch

from services.learner.loop import Loop
from services.learner.stop import Stop, Stopped
from services.learner.talk.idle import waiting_text
from services.learner.weights import checkpoint
from shared import events, streams, weights
from shared.config import Config, build
from shared.messages import (
    Batch,
    Checkpointed,
    Cursor,
    Finish,
    Hello,
    Message,
    Result,
    Scan,
    ScanResult,
    Sync,
    Trained,
    WeightsNotice,
    decode,
    encode,
)
from shared.payload import encode_payload
from shared.streams import FIELD, Keys
from shared.versions import Version
from shared.waiting import LongWait

KEYS = Keys("test")
CURSOR = Cursor(issued=9, lost=1, refilled=0, untrained=[6, 7])
Feed = Callable[..., None]


@pytest.fixture
def client(redis_url: str) -> Any:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def config(tmp_path: Path, policy_dir: Path, redis_url: str) -> Config:
    return build(
        {
            "run": {"name": "test", "root": str(tmp_path), "steps": 20},
            "model": {"path": str(policy_dir)},
            "learner": {"batch": 2, "lr": 1e-2, "threads": 1, "device": "cpu", "checkpoint_every": 2},
            "replay": {"select": 1, "tau": 1e-2},
            "redis": {"url": redis_url},
        }
    )


@pytest.fixture
def feed(client: Any, make_payload: Any) -> Feed:
    """Put a message on `work`, and the payloads it names into Redis where they are missing."""

    def put(message: Message) -> None:
        if isinstance(message, Batch):
            for i, id in enumerate([*message.replay, *message.fresh]):
                payload = make_payload(id, (message.step + i) % 5, version=(0, message.step))
                client.set(KEYS.payload(id), encode_payload(payload), nx=True)
        streams.add(client, KEYS.work, encode(message))

    return put


def batch(step: int, replay: list[str] | None = None) -> Batch:
    return Batch(step=step, replay=replay or [], fresh=[f"{step}a", f"{step}b"], cursor=CURSOR)


def start(config: Config) -> Loop:
    """A process's start: announce and take up what an earlier one left."""
    loop = Loop(config, Stop())
    loop._announce()
    loop._take_up()
    return loop


def work_off(loop: Loop) -> None:
    while entries := loop.inbox.read(1, block_ms=1):
        loop.handle(entries[0])


def results(client: Any, kind: type | None = None) -> list[Any]:
    every = [decode(fields[FIELD], Result) for _, fields in client.xrange(KEYS.results)]
    return [r for r in every if kind is None or isinstance(r, kind)]


def pending(client: Any) -> int:
    return client.xlen(KEYS.work)


def state_of(loop: Loop) -> list[torch.Tensor]:
    return [p.detach().clone() for p in loop.trainer.model.parameters()]


def test_it_announces_its_version_and_its_weights(config: Config, client: Any) -> None:
    start(config)
    assert results(client) == [Hello(version=Version(0, 0))]
    notice = decode(client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice)
    weights.verify(config.weights_dir / notice.location, notice.digest)
    assert len(notice.canary) == config.weights.canary_sequences


def test_a_batch_is_trained_published_and_kept_pending_until_the_checkpoint(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    before = state_of(loop)
    feed(batch(0))
    work_off(loop)
    trained = results(client)[-1]
    assert (trained.step, trained.version, trained.rejected) == (0, Version(0, 1), [])
    assert [r.id for r in trained.records] == ["0a", "0b"]
    assert not all(torch.equal(a, b) for a, b in zip(before, state_of(loop), strict=True))
    notice = decode(client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice)
    assert notice.version == trained.version
    assert pending(client) == 1
    assert client.get(KEYS.reference("0a")) is not None

    feed(batch(1, replay=["0a"]))
    work_off(loop)
    assert isinstance(results(client)[-1], Checkpointed)
    assert results(client)[-1].step == 2
    assert pending(client) == 0
    assert checkpoint.steps(config.checkpoints_dir) == [2]


def test_the_metrics_of_a_step_are_complete_and_add_up(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    feed(Scan(scan="s", step=1, ids=["0a"]))
    feed(batch(1, replay=["0a"]))
    work_off(loop)
    m = results(client, Trained)[1].metrics
    learning = "loss kl ratio_mean clip_share grad_norm lr tokens_trained replay_kl entropy padding_share"
    times = "wait_s scan_s fetch_s reference_s train_s publish_s checkpoint_s step_s"
    gaps = "engine_gap engine_gap_limit reference_gap"
    assert set(m) == set(f"{learning} {gaps} {times} payload_bytes_read payload_reads".split())
    assert all(isinstance(v, float) for v in m.values())
    assert m["payload_reads"] == 2  # the replayed group was in the cache since it was trained fresh
    assert 0 < sum(m[t] for t in times.split()[:-1]) <= m["step_s"]
    assert m["scan_s"] > 0
    assert m["replay_kl"] > 0
    assert results(client, Trained)[0].metrics["engine_gap"] < 1e-9


def test_a_scan_is_answered_under_the_current_version(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    feed(Scan(scan="right", step=1, ids=["0b", "gone", "0a"]))
    feed(Scan(scan="early", step=7, ids=["0a"]))
    work_off(loop)
    right, early = results(client, ScanResult)
    assert (right.scan, right.step, right.version) == ("right", 1, Version(0, 1))
    assert [r.id for r in right.records] == ["0b", "0a"]
    assert all(r.drift > 0 for r in right.records)  # one step away from its l_ref
    assert right.seconds > 0
    assert (early.scan, early.records) == ("early", [])
    assert pending(client) == 1  # the batch


def test_refused_groups_are_named_and_the_rest_is_trained(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    client.set(KEYS.payload("0b"), b"rubbish")
    feed(batch(0, replay=["never-stored-a-reference"]))
    work_off(loop)
    trained = results(client, Trained)[0]
    assert [r.id for r in trained.records] == ["0a"]
    assert trained.rejected == ["never-stored-a-reference", "0b"]
    assert client.xlen(KEYS.dead) == 2


def test_a_batch_of_refused_groups_only_is_still_a_step(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    before = state_of(loop)
    for id in ("0a", "0b"):
        client.set(KEYS.payload(id), b"rubbish")
    feed(batch(0))
    work_off(loop)
    trained = results(client, Trained)[0]
    assert (trained.version, trained.records) == (Version(0, 1), [])
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(loop), strict=True))


def test_a_crash_before_the_checkpoint_trains_the_same_batches_again_to_the_same_bits(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    for step in range(3):
        feed(batch(step, replay=["0a"] if step else []))
    work_off(loop)
    expected = state_of(loop)
    assert checkpoint.steps(config.checkpoints_dir) == [2]

    again = start(config)  # the first one is gone without a word
    assert again.version == Version(1, 3)
    assert [t.step for t in results(client, Trained)] == [0, 1, 2, 2]
    assert results(client, Hello)[-1].version == Version(1, 2)
    assert all(torch.equal(a, b) for a, b in zip(expected, state_of(again), strict=True))
    feed(batch(3))
    work_off(again)
    assert pending(client) == 0


def test_a_crash_between_the_checkpoint_and_its_acknowledgement_trains_nothing_twice(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start(config)
    feed(batch(0))
    work_off(loop)
    feed(batch(1))
    patiently = loop.post.patiently

    def die(what: str, call: Any) -> Any:
        if "acknowledge" in what:
            raise KeyboardInterrupt
        return patiently(what, call)

    monkeypatch.setattr(loop.post, "patiently", die)
    with pytest.raises(KeyboardInterrupt):
        work_off(loop)
    assert checkpoint.steps(config.checkpoints_dir) == [2]
    assert pending(client) == 2

    again = start(config)
    assert again.version == Version(1, 2)
    assert [t.step for t in results(client, Trained)] == [0, 1]
    assert results(client, Checkpointed)[-1].step == 2
    assert pending(client) == 0


def test_a_batch_that_comes_twice_is_trained_once(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    for step in (0, 0, 1):
        feed(batch(step))
    work_off(loop)
    assert [t.step for t in results(client, Trained)] == [0, 1]
    assert pending(client) == 0


def test_what_makes_no_sense_is_buried_and_the_rest_goes_on(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    streams.add(client, KEYS.work, b"\xc1")
    feed(batch(0))
    work_off(loop)
    assert [t.step for t in results(client, Trained)] == [0]
    reasons = [f[b"reason"].decode() for _, f in client.xrange(KEYS.dead)]
    assert "not a valid message" in reasons[0]


def test_batches_ahead_of_the_learner_are_asked_for_once_and_trained_when_what_is_missing_comes(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    feed(batch(1))
    feed(batch(2))
    work_off(loop)
    assert results(client)[1:] == [Hello(version=Version(0, 0), again=True)]
    assert pending(client) == 0
    feed(Sync(step=2, batches=[0, 1, 2]))
    for step in range(3):
        feed(batch(step))
    work_off(loop)
    assert [t.step for t in results(client, Trained)] == [0, 1, 2]


def test_steps_that_nobody_can_give_any_more_are_left_out_with_a_warning(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    feed(batch(4))
    feed(Sync(step=5, batches=[3, 4]))
    for step in (3, 4):
        feed(batch(step))
    work_off(loop)
    assert results(client, Hello)[-1] == Hello(version=Version(0, 3))
    assert [t.step for t in results(client, Trained)] == [3, 4]
    assert any(b"going on at step 3 with the weights of step 0" in f[FIELD] for _, f in client.xrange(KEYS.events))
    assert weights.published(config.weights_dir)[-1] == Version(0, 5)


def test_a_step_that_replay_lost_the_word_of_is_told_again_and_not_trained_again(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    feed(batch(0))
    work_off(loop)
    told, reference = results(client, Trained), client.get(KEYS.reference("0a"))
    client.delete(KEYS.results, KEYS.weights, KEYS.reference("0a"))  # the server lost its last second
    client.delete(KEYS.payload("0b"), KEYS.reference("0b"))
    streams.add(client, KEYS.work, encode(batch(0)))
    feed(Sync(step=0, batches=[0]))
    work_off(loop)
    assert results(client) == [*told, Hello(version=Version(0, 1), cursor=CURSOR)]
    assert client.get(KEYS.reference("0a")) == reference
    assert client.get(KEYS.reference("0b")) is None, "no l_ref without its group"
    assert decode(client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice).version == Version(0, 1)


@pytest.mark.slow
def test_a_learner_that_waits_long_says_so_and_warns_where_nobody_makes_groups(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.loop.LongWait", partial(LongWait, 0.2))
    monkeypatch.setattr("services.learner.loop.START_S", 0.0)
    loop = Loop(of_steps(config, 1), Stop())
    later = threading.Timer(3.0, lambda: [feed(batch(0)), feed(Finish())])
    later.start()
    loop.run()
    later.join()
    told = [record["text"] for _, record in events.parse(client.xrange(KEYS.events))]
    assert len(told) == 1, "and the next time fifteen seconds later"
    assert "for work at step 0: no actors are alive, and of groups none has come yet" in told[0]
    client.sadd(KEYS.actors, "a")
    client.set(KEYS.actor("a"), "{}")
    streams.add(client, KEYS.groups, b"a header")
    text, groups_are_coming = waiting_text(client, KEYS, 3, 60.0)
    assert groups_are_coming
    assert text.startswith("the learner has waited 60 s for work at step 3: 1 actor is alive")


@pytest.mark.slow
def test_a_learner_that_waits_while_the_actors_still_start_warns_of_nothing(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.loop.LongWait", partial(LongWait, 0.2))
    loop = Loop(of_steps(config, 1), Stop())
    later = threading.Timer(1.0, lambda: [feed(batch(0)), feed(Finish())])
    later.start()
    loop.run()
    later.join()
    assert client.xlen(KEYS.events) == 0


def stop_in_update(loop: Loop, number: int) -> None:
    """A signal that comes just after this update of the weights, the first is 0; `ask` would end this process."""
    update, left = loop.trainer.optimiser.step, [number]

    def then_stop(step: int) -> Any:
        done = update(step)
        if left[0] == 0:
            loop.stop._asked.set()
        left[0] -= 1
        return done

    loop.trainer.optimiser.step = then_stop


def test_a_signal_between_steps_finds_them_saved(config: Config, client: Any, feed: Feed) -> None:
    loop = Loop(config, Stop())
    feed(batch(0))
    stop_in_update(loop, 0)
    with pytest.raises(Stopped):
        loop.run()
    assert results(client)[-1] == Checkpointed(version=Version(0, 1), step=1)
    assert pending(client) == 0
    again = start(config)
    assert (again.step, again._cursor) == (1, CURSOR)
    assert all(map(torch.equal, state_of(again), state_of(loop)))


def test_a_signal_within_a_step_saves_the_step_before_it(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    work_off(loop)
    before = state_of(loop)
    loop.stop._asked.set()
    feed(batch(1))
    with pytest.raises(Stopped):
        loop.run()
    assert results(client)[-1] == Checkpointed(version=Version(0, 1), step=1)
    assert pending(client) == 1, "batch 1, which was not trained"
    assert all(map(torch.equal, state_of(Loop(config, Stop())), before))


def test_a_signal_between_the_updates_of_a_step_saves_nothing(config: Config, client: Any, feed: Feed) -> None:
    learner = config.learner.model_copy(update={"mini_batch": 1})
    loop = Loop(config.model_copy(update={"learner": learner}), Stop())
    feed(batch(0))
    feed(batch(1))
    stop_in_update(loop, 2)
    with pytest.raises(Stopped):
        loop.run()
    assert loop.step == 1
    assert results(client, Checkpointed) == []
    assert pending(client) == 2


@pytest.mark.slow
def test_a_version_whose_files_are_damaged_is_written_again_while_the_learner_waits(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.loop.LongWait", partial(LongWait, 0.2))
    loop = Loop(of_steps(config, 1), Stop())
    folder = config.weights_dir / Version(0, 0).directory

    def damage() -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")

    threading.Timer(0.5, damage).start()
    threading.Timer(3.0, lambda: [feed(batch(0)), feed(Finish())]).start()
    loop.run()
    notices = [decode(fields[FIELD], WeightsNotice) for _, fields in client.xrange(KEYS.weights)]
    assert [notice.version for notice in notices] == [Version(0, 0), Version(0, 0), Version(0, 1)]
    assert notices[0].digest == notices[1].digest
    weights.verify(folder, notices[0].digest)
    told = [record["text"] for _, record in events.parse(client.xrange(KEYS.events))]
    assert "the files of version 0.0 were damaged or gone, and are written again." in told


def test_on_a_server_that_is_short_of_memory_a_checkpoint_comes_early(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    client.setrange("of another run", 20 * 2**20, "x")
    try:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.15))
        work_off(loop)
    finally:
        client.config_set("maxmemory", 0)
    assert config.learner.checkpoint_every == 2
    assert checkpoint.steps(config.checkpoints_dir) == [1]
    assert pending(client) == 0


def test_an_emptied_server_is_told_where_the_learner_is(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    for step in range(3):
        feed(batch(step))
    work_off(loop)
    client.flushall()
    loop.inbox.create()
    feed(Sync(step=0, batches=[]))
    work_off(loop)
    assert results(client) == [Hello(version=Version(0, 3), cursor=CURSOR)]
    assert decode(client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice).version == Version(0, 3)
    again = start(config)
    assert again.version == Version(1, 2), "a lineage is not used again"
    assert results(client, Hello)[-1].cursor == CURSOR, "the checkpoint knows how far the data set is used"


def test_with_the_newest_checkpoint_damaged_it_goes_on_where_the_batches_do(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    for step in range(4):
        feed(batch(step))
    work_off(loop)
    (config.checkpoints_dir / "step_4" / "model.safetensors").write_bytes(b"")

    again = start(config)
    assert again.version == Version(1, 4)
    assert results(client, Hello)[-1].version == Version(1, 4)
    assert b"checkpoint is of step 2" in client.xrevrange(KEYS.events)[0][1][FIELD]
    feed(batch(4))
    work_off(again)
    assert results(client, Trained)[-1].step == 4


def test_a_lineage_is_never_used_again_even_when_redis_was_emptied(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    for step in range(2):
        feed(batch(step))
    work_off(loop)
    client.flushall()
    assert start(config).version == Version(1, 2)
    assert start(config).version == Version(2, 2)


def of_steps(config: Config, steps: int) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"steps": steps})})


def test_finish_saves_acknowledges_and_ends(config: Config, client: Any, feed: Feed) -> None:
    loop = start(of_steps(config, 1))
    feed(batch(0))
    feed(Finish())
    entries = loop.inbox.read(2)
    assert [loop.handle(e) for e in entries] == [False, True]
    assert results(client)[-1] == Checkpointed(version=Version(0, 1), step=1)
    assert pending(client) == 0
    assert checkpoint.steps(config.checkpoints_dir) == [1]


def test_a_finish_that_was_not_acknowledged_ends_the_next_life(config: Config, client: Any, feed: Feed) -> None:
    loop = start(of_steps(config, 1))
    feed(batch(0))
    work_off(loop)
    feed(Finish())
    loop.inbox.read(1)  # and dies
    again = Loop(of_steps(config, 1), Stop())
    again.run()
    assert pending(client) == 0


def test_a_finish_from_before_the_run_was_given_more_steps_is_passed_over(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(of_steps(config, 2))
    feed(Finish())
    feed(batch(0))
    assert [loop.handle(e) for e in loop.inbox.read(2)] == [False, False]
    assert loop.step == 1


def test_old_versions_are_deleted_as_new_ones_are_published(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    for step in range(4):
        feed(batch(step))
    work_off(loop)
    assert weights.published(config.weights_dir) == [Version(0, 3), Version(0, 4)]


def test_plain_grpo_writes_no_references(config: Config, client: Any, feed: Feed) -> None:
    plain = config.model_copy(update={"replay": config.replay.model_copy(update={"policy": "none"})})
    loop = start(plain)
    feed(batch(0))
    work_off(loop)
    assert client.keys(KEYS.reference("*")) == []


@pytest.mark.parametrize(("share", "warned"), [(0.9, False), (1.1, True)])
def test_an_engine_gap_above_a_tenth_of_tau_is_warned_of(
    config: Config, client: Any, feed: Feed, make_payload: Any, share: float, warned: bool
) -> None:
    loop = start(config)
    shift = np.float32(
        (share * config.replay.tau / 10) ** 0.5
    )  # the engine takes every token to be this much less likely
    for i, id in enumerate(batch(0).fresh):
        payload = make_payload(id, i)
        client.set(KEYS.payload(id), encode_payload(replace(payload, l_gen=payload.l_gen - shift)))
    feed(batch(0))
    work_off(loop)
    assert results(client, Trained)[0].metrics["engine_gap"] == pytest.approx(share * config.replay.tau / 10, rel=0.01)
    told = [e["text"] for _, e in events.parse(client.xrange(KEYS.events)) if e["kind"] == "warning"]
    assert len(told) == warned
    assert all("the engine gap is 1.10e-03, and replay.tau / 10 is 1.00e-03" in text for text in told)
