"""What the loop does and says while it waits, and when Redis runs short of memory."""

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from services.learner.loop import Loop
from services.learner.stop import Stop
from services.learner.talk.idle import waiting_text
from services.learner.weights import checkpoint
from shared import events, streams, weights
from shared.config import Config
from shared.messages import (
    Finish,
    WeightsNotice,
    decode,
)
from shared.streams import FIELD
from shared.versions import Version
from shared.waiting import LongWait
from tests.learner.fed import KEYS, Feed, batch, of_steps, pending, start, work_off

Waits = Callable[[float], None]


@pytest.fixture
def waits(config: Config, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """`waits(seconds)`: the life of a learner that waits so long for its only step, and finds 0.2 s long."""
    monkeypatch.setattr("services.learner.loop.LongWait", partial(LongWait, 0.2))
    loop = Loop(of_steps(config, 1), Stop())

    def live(seconds: float) -> None:
        later = threading.Timer(seconds, lambda: [feed(batch(0)), feed(Finish())])
        later.start()
        loop.run()
        later.join()

    return live


@pytest.mark.slow
def test_a_learner_that_waits_long_says_so_and_warns_where_nobody_makes_groups(
    client: Any, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.loop.START_S", 0.0)
    waits(3.0)
    told = [record["text"] for _, record in events.parse(client.xrange(KEYS.events))]
    assert len(told) == 1, "and the next time fifteen seconds later"
    assert "for work at step 0: no actors are alive, and of groups none has come yet" in told[0]
    client.sadd(KEYS.actors, "a")
    client.set(KEYS.actor("a"), "{}")
    text, is_warning = waiting_text(client, KEYS, 3, 60.0, usual_s=120.0)
    assert not is_warning, "its groups take as long as those of the steps before"
    assert text.startswith("the learner has waited 60 s for work at step 3: 1 actor is alive")
    assert waiting_text(client, KEYS, 3, 121.0, usual_s=120.0)[1]
    client.delete(KEYS.actor("a"))
    assert waiting_text(client, KEYS, 3, 60.0, usual_s=120.0)[1], "nobody is there to make any"
    streams.add(client, KEYS.groups, b"a header")
    assert not waiting_text(client, KEYS, 3, 600.0, usual_s=120.0)[1], "groups are coming"


@pytest.mark.slow
def test_a_wait_as_long_as_those_of_the_steps_before_is_no_warning(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.loop.LongWait", partial(LongWait, 0.2))
    monkeypatch.setattr("services.learner.loop.FIRST_S", 0.2)  # no group comes for longer than that
    client.sadd(KEYS.actors, "a")
    client.set(KEYS.actor("a"), "{}")
    loop = Loop(of_steps(config, 2), Stop())

    def work() -> None:
        for step in range(2):
            while loop.step < step:
                time.sleep(0.05)
            time.sleep(1.5)
            feed(batch(step))
        feed(Finish())

    feeding = threading.Thread(target=work)
    feeding.start()
    loop.run()
    feeding.join()
    assert loop.step == 2
    assert not [text for _, told in events.parse(client.xrange(KEYS.events)) if "has waited" in (text := told["text"])]


@pytest.mark.slow
def test_a_learner_that_waits_while_the_actors_still_start_warns_of_nothing(client: Any, waits: Waits) -> None:
    waits(1.0)
    assert client.xlen(KEYS.events) == 0


@pytest.mark.slow
def test_a_version_whose_files_are_damaged_is_written_again_while_the_learner_waits(
    config: Config, client: Any, waits: Waits
) -> None:
    folder = config.weights_dir / Version(0, 0).directory

    def damage() -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")

    threading.Timer(0.5, damage).start()
    waits(3.0)
    notices = [decode(fields[FIELD], WeightsNotice) for _, fields in client.xrange(KEYS.weights)]
    assert [notice.version for notice in notices] == [Version(0, 0), Version(0, 0), Version(0, 1)]
    assert notices[0].digest == notices[1].digest
    weights.verify(folder, notices[0].digest)
    told = [record["text"] for _, record in events.parse(client.xrange(KEYS.events))]
    assert "the files of version 0.0 were damaged or gone, and are written again." in told


@pytest.mark.slow
def test_a_version_that_an_actor_refuses_is_announced_again_with_other_canaries_and_not_for_ever(
    config: Config, client: Any, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.waiting.FIRST_S", 0.2)  # and each time after as long again
    client.sadd(KEYS.actors, "a")
    client.set(KEYS.actor("a"), json.dumps({"refused": [0, 0]}))
    waits(9.0)
    notices = [decode(fields[FIELD], WeightsNotice) for _, fields in client.xrange(KEYS.weights)]
    assert [notice.version.number for notice in notices] == [0, 0, 0, 0, 1], "three more times, then no more"
    assert len({notice.digest for notice in notices[:4]}) == 1
    canaries = [tuple(c.tokens) for notice in notices[:4] for c in notice.canary]
    assert len(set(canaries)) == len(canaries) == 4 * config.weights.canary_sequences
    told = [record["text"] for _, record in events.parse(client.xrange(KEYS.events))]
    assert sum("weights 0.0 are refused by an actor" in text for text in told) == 3
    assert any("3 of at most 3 times" in text for text in told)


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
