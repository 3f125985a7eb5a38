"""How often a wait is told."""

from shared.waiting import RECENT, LongWait, Usual


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


def test_a_wait_is_unusual_where_it_is_twice_as_long_as_those_of_the_last_steps() -> None:
    usual = Usual(15.0)
    assert usual.limit_s == 15.0
    usual.took(0, 100.0)
    assert usual.limit_s == 200.0
    for step in range(1, 4):
        usual.took(step, 0.1)
        usual.took(step, 40.0)  # a scan came before the batch
    assert usual.limit_s == 80.0, "the first wait, in which models were loaded, counts no more"
    usual.took(4, 3600.0)
    assert usual.limit_s == 200.0, "one outage is not what is usual"
    for step in range(5, 5 + RECENT):
        usual.took(step, 1.0)
    assert usual.limit_s == 15.0
