"""The learner tells of a replay that is gone, and of its return."""

import time
from collections.abc import Callable

import redis
from prometheus_client import REGISTRY

from services.learner.talk.beside import LOOK_S, Beside
from shared.config import build
from shared.only_one import SILENT_S, OnlyOne


def value() -> float | None:
    return REGISTRY.get_sample_value("headrace_learner_replay_silent_seconds")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_replay_that_is_gone_is_told_of_and_so_is_its_return(redis_url: str) -> None:
    now = [1000.0]
    config = build({"run": {"name": "one"}, "redis": {"url": redis_url}})
    with redis.Redis.from_url(redis_url) as client:
        beside = Beside(client, "one", lambda: now[0])

        def look() -> list[str]:
            now[0] += LOOK_S
            return beside.look()

        assert look() == [] and value() == 0, "it has not come up yet"
        replay = OnlyOne(config, "replay")
        assert replay.try_begin()
        wait_for(lambda: any(c["name"].startswith("headrace:one:replay:") for c in client.client_list()))
        assert look() == [] and value() == 0
        replay.leave()
        wait_for(lambda: not any(c["name"].startswith("headrace:one:replay:") for c in client.client_list()))
        assert look() == [] and (value() or 0) >= LOOK_S, "the metric shows it at once"
        now[0] += SILENT_S
        [text] = look()
        assert text.startswith("replay has stopped reporting (hung, stopped, cut off or ended)")
        assert beside.look() == [], "it looks at most every LOOK_S"
        again = OnlyOne(config, "replay")
        assert again.try_begin()
        wait_for(lambda: any(c["name"].startswith("headrace:one:replay:") for c in client.client_list()))
        assert look()[0].startswith("replay reports again after") and value() == 0
        again.leave()
