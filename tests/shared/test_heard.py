"""A single service that falls silent is told of once, after a while, and so is its return; a slow Redis likewise."""

import pytest
from prometheus_client import CollectorRegistry

from shared.heard import Heard
from shared.only_one import SILENT_S
from shared.round_trip import IN_A_ROW, SLOW_S, RoundTrip
from shared.waiting import START_S


@pytest.mark.parametrize("hangs", [True, False], ids=["it hangs", "its connection is gone"])
def test_who_was_heard_and_falls_silent_is_told_of_once_and_so_is_its_return(hangs: bool) -> None:
    now = [1000.0]
    heard = Heard("learner", lambda: now[0])
    assert heard.take(None) is None and heard.silent_s == 0, "it is not up yet"
    assert heard.take(1.0) is None and heard.silent_s == 0
    told = []
    for second in range(0, 31, 5):
        now[0] = 1000.0 + second
        if text := heard.take(second + 1.0 if hangs else None):
            told.append((second, text))
    [(when, text)] = told
    assert SILENT_S - 1 <= when < SILENT_S + 5
    assert heard.silent_s == 31.0
    assert text.startswith("the learner has stopped reporting (hung, stopped, cut off or ended): no step is trained")
    assert heard.take(0.0) == "the learner reports again after 31 s."
    assert heard.silent_s == 0 and heard.take(0.0) is None


def test_one_that_is_not_there_from_the_start_is_missed_once_it_has_had_its_time() -> None:
    now = [50.0]
    heard = Heard("learner", lambda: now[0])
    now[0] += START_S - 1
    assert heard.take(None) is None and heard.silent_s == 0, "its model is loading"
    now[0] += 1
    text = heard.take(None)
    assert text is not None and text.startswith("the learner has stopped reporting") and heard.silent_s == START_S
    now[0] += 5
    assert heard.take(None) is None, "told once"
    assert heard.take(0.0) == f"the learner reports again after {START_S + 5:.0f} s."


def test_one_that_is_back_before_the_limit_is_not_told_of() -> None:
    now = [0.0]
    heard = Heard("replay", lambda: now[0])
    heard.take(0.0)
    now[0] = SILENT_S - 1
    assert heard.take(None) is None and heard.silent_s == SILENT_S - 1, "the metric says it at once"
    assert heard.take(0.0) is None and heard.silent_s == 0


def test_a_slow_redis_is_told_of_once_until_it_was_quick_again() -> None:
    registry = CollectorRegistry()
    trip = RoundTrip("actor", registry)
    took = [SLOW_S, 0.001, *[2 * SLOW_S] * (IN_A_ROW + 2), 0.001, *[SLOW_S] * IN_A_ROW]
    told = [at for at, seconds in enumerate(took) if trip.took(seconds)]
    assert told == [1 + IN_A_ROW, 4 + 2 * IN_A_ROW]
    assert registry.get_sample_value("headrace_actor_redis_round_trip_seconds") == SLOW_S
