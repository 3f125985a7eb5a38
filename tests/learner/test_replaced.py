"""A second learner of a run takes over, as a second replay does: the first may say nothing more."""

from contextlib import nullcontext
from typing import Any

import pytest
import redis

from services.learner.stop import Stop
from services.learner.talk import lineage, outbox
from services.learner.talk.outbox import Outbox
from shared.config import Config
from shared.errors import UserError
from shared.messages import Trained, WeightsNotice, decode
from shared.redis_client import connect
from shared.streams import FIELD
from shared.versions import Version
from tests.learner.fed import KEYS, Feed, batch, pending, results, start

pytestmark = pytest.mark.slow


def test_what_a_replaced_learner_has_read_is_trained_by_the_one_after_it(
    config: Config, client: Any, feed: Feed
) -> None:
    old, new = start(config), start(config)
    feed(batch(0))
    [entry] = old.inbox.read(1, block_ms=1)
    with pytest.raises(UserError, match="another learner has taken over"):
        old.handle(entry)
    assert not new.inbox.read(1, block_ms=1), "it was delivered, to a reader of the same name"
    new._take_up()
    assert [t.version for t in results(client, Trained)] == [Version(1, 1)]
    announced = [decode(fields[FIELD], WeightsNotice).version for _, fields in client.xrange(KEYS.weights)]
    assert announced == [Version(0, 0), Version(1, 0), Version(1, 1)]


def test_a_transaction_that_arrives_after_a_later_one_has_no_effect(redis_url: str, client: Any) -> None:
    with connect(redis_url) as own, connect(redis_url) as old:
        box = Outbox(own, KEYS, Stop())
        box.lineage = lineage.open_lineage(client, KEYS, -1)
        late = old.pipeline()
        late.watch(lineage.lives_key(KEYS))
        late.multi()
        late.set("late", 1)
        with box.transaction("announce") as tx:
            tx.event("warning", text="in time")
        with pytest.raises(redis.WatchError):
            late.execute()
    assert client.xlen(KEYS.events) == 1 and not client.exists("late")


@pytest.mark.parametrize("cut_off", [False, True], ids=["replaced", "cut_off"])
def test_a_learner_that_is_replaced_while_it_writes_writes_nothing_and_one_that_is_cut_off_writes_once(
    redis_url: str, client: Any, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    with connect(redis_url) as own:
        box = Outbox(own, KEYS, Stop())
        box.lineage = lineage.open_lineage(client, KEYS, -1)
        happened = []

        def look(*args: Any) -> None:
            if cut_off and not happened:
                happened.append(client.client_kill_filter(_type="normal", skipme=True) > 0)
            lineage.refuse_if_replaced(*args)
            if not happened:  # between the look and what is written
                happened.append(lineage.open_lineage(client, KEYS, -1))

        monkeypatch.setattr(outbox, "refuse_if_replaced", look)
        refused = nullcontext() if cut_off else pytest.raises(UserError, match="another learner has taken over")
        with refused, box.transaction("announce") as tx:
            tx.event("warning", text="late")
    assert happened == [1] and client.xlen(KEYS.events) == int(cut_off)


def test_what_is_taken_up_again_is_acknowledged_once(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    for _ in range(3):
        [loop.handle(entry) for entry in loop.inbox.read(1, block_ms=1)]
        loop._take_up()
    assert len(loop._saving.open) == pending(client) == 1
    assert len(results(client, Trained)) == 1
