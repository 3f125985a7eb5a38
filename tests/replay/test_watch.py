"""Warnings that come once, when there is reason."""

from services.replay.watch import CLOGGED_STEPS, Watch
from shared.streams import Keys


def stats(acceptance: float | None, age: float | None, scanned: int = 10) -> dict:
    return {"scanned": scanned, "acceptance": acceptance, "scanned_age_mean": age}


def watch(now: list[float] | None = None) -> Watch:
    clock = now or [0.0]
    return Watch(None, Keys("r"), lambda: clock[0])  # type: ignore[arg-type]  nothing here asks Redis


def test_a_clogged_order_is_named_once():
    w = watch()
    for _ in range(3 * CLOGGED_STEPS):
        w.batch(stats(0.05, 20.0), capacity=512)
    (text,) = w.warnings()
    assert "replay.capacity = 512" in text and "20 steps old" in text
    assert w.warnings() == []


def test_young_groups_low_acceptance_for_a_step_or_no_scan_are_no_reason():
    w = watch()
    for i in range(4 * CLOGGED_STEPS):
        w.batch(stats(0.05, 2.0), capacity=512)
        w.batch(stats(None, None, scanned=0), capacity=512)
        w.batch(stats(0.05 if i % 2 else 0.5, 20.0), capacity=512)
    assert w.warnings() == []


def test_a_long_wait_is_named_by_what_it_waits_for():
    now = [0.0]
    w = watch(now)
    w.waits_for("the learner to train step 3")
    now[0] = 50.0
    w.waits_for("the learner to train step 3")
    assert w.waiting() == ("the learner to train step 3", 50.0)
    w.waits_for("fresh groups for step 4")
    assert w.waiting() == ("fresh groups for step 4", 0.0)
