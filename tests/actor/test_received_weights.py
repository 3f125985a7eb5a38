"""A whole actor on the torch engine whose weights come through Redis, or by broadcast."""

from pathlib import Path
from typing import Any

import pytest
import redis

from services.actor import follower
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights.transports.broadcast import BroadcastSender
from services.learner.weights.transports.redis_chunks import RedisSender
from shared import weights
from shared.events import parse
from tests.actor.running import KEYS, announce, heartbeats, make_task, ready, send, wait_for
from tests.actor.running import headers as groups


@pytest.mark.slow
def test_they_are_adopted_and_wrong_missing_and_damaged_ones_refused(
    client: redis.Redis,
    make_config: Any,
    redis_url: str,
    start_actor: Any,
    publish: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "TRY_AGAIN_S", 0.3)
    received = tmp_path / "elsewhere"
    config = make_config(
        redis={"url": redis_url},
        env={"kind": "single"},
        weights={"transport": "redis", "received": str(received), "dir": str(tmp_path / "nowhere")},
    )
    sender = RedisSender(Outbox(client, KEYS, Stop()), Stop(), delta=True)
    first = publish(0, seed=0)
    sender.send(*first)
    start_actor(config)
    announce(client, first)
    wait_for("the first weights", lambda: ready(client) or None)

    def told(kind: str) -> dict[str, Any]:
        return wait_for(
            kind, lambda: next((e for _, e in parse(client.xrange(KEYS.events)) if e["kind"] == kind), None)
        )

    wrong = publish(1, seed=1, canary_seed=2)
    sender.send(*wrong)
    announce(client, wrong)
    assert "nats" in told("refused")["reason"]
    late = publish(2, seed=1)
    announce(client, late)
    assert f"weights {late[0].version} are announced, and" in told("warning")["text"]
    assert heartbeats(client)[0]["version"] == [0, 0]
    sender.send(*late)
    send(client, make_task(1, min_version=2))
    assert groups(client, 1)[0].version_min == late[0].version
    assert weights.digest_in(received / late[0].location) == late[0].digest
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_a_version_that_came_by_broadcast_and_is_refused_leaves_the_one_before_in_force(
    client: redis.Redis, make_config: Any, redis_url: str, start_actor: Any, publish: Any, tmp_path: Path
) -> None:
    received, published = tmp_path / "elsewhere", tmp_path / "test" / "weights"
    common = {"redis": {"url": redis_url}, "env": {"kind": "single"}}
    config = make_config(
        **common,
        weights={"transport": "broadcast", "received": str(received), "dir": str(tmp_path / "nowhere")},
    )
    sender = BroadcastSender(make_config(**common, weights={"dir": str(published)}), client)
    try:
        good = publish(0, seed=0)  # before an engine that is being made draws from the same random numbers
        start_actor(config)
        announce(client, good)
        wait_for("the first weights", lambda: ready(client) or None)
        announce(client, publish(1, seed=1, canary_seed=2))

        def refused() -> dict[str, Any] | None:
            return next((e for _, e in parse(client.xrange(KEYS.events)) if e["kind"] == "refused"), None)

        assert "nats" in wait_for("a refusal", refused)["reason"]
        assert heartbeats(client)[0]["version"] == [0, 0]
        last = publish(2, seed=1)
        announce(client, last)
        send(client, make_task(1, min_version=2))
        assert groups(client, 1)[0].version_min == last[0].version
        assert weights.digest_in(received / last[0].location) == last[0].digest
    finally:
        sender.close()
