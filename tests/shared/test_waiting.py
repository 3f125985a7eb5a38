"""How often a wait is told."""

from shared.waiting import LongWait


def test_a_wait_is_told_after_a_while_and_then_less_and_less_often() -> None:
    now = 0.0
    wait = LongWait(clock=lambda: now)
    told = []
    for second in range(3600):
        now = float(second)
        if wait.due():
            told.append(second)
    assert told == [15, 30, 60, 120, 240, 480, 960, 1560, 2160, 2760, 3360]


def test_a_wait_that_is_told_at_once_is_told_again_after_fifteen_seconds() -> None:
    now = 0.0
    wait = LongWait(first_s=0.0, clock=lambda: now)
    assert wait.due() and not wait.due()
    now = 15.0
    assert wait.due()
