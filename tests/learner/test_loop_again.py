"""The crashes that the acknowledgements are there for, and what is told again after one on either side."""

import json
from typing import Any

import pytest
import torch

from services.learner.weights import checkpoint
from shared import streams, weights
from shared.config import Config
from shared.messages import (
    Checkpointed,
    Hello,
    Sync,
    Trained,
    WeightsNotice,
    decode,
    encode,
)
from shared.streams import FIELD, saved_key
from shared.versions import Version
from tests.learner.fed import CURSOR, KEYS, Feed, batch, pending, results, start, state_of, work_off


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
    patiently = loop.outbox.patiently

    def die(what: str, call: Any) -> Any:
        if "acknowledge" in what:
            raise KeyboardInterrupt
        return patiently(what, call)

    monkeypatch.setattr(loop.outbox, "patiently", die)
    with pytest.raises(KeyboardInterrupt):
        work_off(loop)
    assert checkpoint.steps(config.checkpoints_dir) == [2]
    assert pending(client) == 2

    again = start(config)
    assert again.version == Version(1, 2)
    assert [t.step for t in results(client, Trained)] == [0, 1]
    assert results(client, Checkpointed)[-1].step == 2
    assert pending(client) == 0


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


def test_a_step_without_a_batch_behind_those_that_were_trained_is_left_out_too(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    feed(batch(0))
    feed(Sync(step=4, batches=[0, 3]))
    work_off(loop)
    assert client.get(saved_key(KEYS)) == b"0", "a life that begins before the next checkpoint trains 0 again"
    feed(batch(3))
    work_off(loop)
    assert [t.step for t in results(client, Trained)] == [0, 3]
    assert any(b"going on at step 3 with the weights of step 1" in f[FIELD] for _, f in client.xrange(KEYS.events))


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


def test_a_server_that_is_emptied_while_the_learner_takes_up_what_was_left_is_read_on(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start(config)
    feed(batch(0))
    assert loop.inbox.read(1)
    taken: list[Any] = []

    def empty(entry: Any) -> bool:
        taken.append(entry)
        client.flushall()
        return False

    monkeypatch.setattr(loop, "handle", empty)
    assert not loop._take_up()
    assert len(taken) == 1


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


def test_a_strangers_entry_behind_the_newest_notice_has_it_announced_again(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    client.xadd(KEYS.weights, {"strange": "field"})
    feed(Sync(step=0, batches=[]))
    work_off(loop)
    assert decode(client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice).version == loop.version


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
    said = json.loads(client.xrevrange(KEYS.events)[0][1][FIELD])
    assert "checkpoint is of step 2, " in said["text"] and ": 2 trained steps are lost, " in said["text"]
    assert (said["lost_from"], said["lost_to"]) == (2, 4)
    feed(Sync(step=4, batches=[]))
    feed(batch(4))
    work_off(again)
    assert results(client, Trained)[-1].step == 4
    assert client.get(saved_key(KEYS)) == b"4", "the batches below are gone, whatever checkpoint there is"


def test_a_lineage_is_never_used_again_even_when_redis_was_emptied(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    for step in range(2):
        feed(batch(step))
    work_off(loop)
    client.flushall()
    assert start(config).version == Version(1, 2)
    assert start(config).version == Version(2, 2)
