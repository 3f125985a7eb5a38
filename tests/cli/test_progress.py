"""The display: what it says before, while and after training."""

import io

import pytest
from rich.console import Console

from cli.run.progress import PlainScreen, clock, doing, line, screen_for, table
from cli.run.view import RunView

STEP = {
    "kind": "step",
    "time": 1.0,
    "seconds": 2.0,
    "reward_mean": 0.5,
    "correct_share": 0.5,
    "acceptance": 0.75,
    "lag_mean": 0.5,
    "lag_max": 1,
    "tokens_per_s": 2500.0,
    "fresh_groups": 16,
    "replay_groups": 8,
    "buffer_groups": 32,
    "age_mean": 2.0,
    "headroom_mean": 0.71,
    "drift_mean": 0.0123,
    "learner": {"wait_s": 0.5, "step_s": 2.0},
}


def training_view() -> RunView:
    view = RunView("atlas-001", 100, started=0.0)
    view.update({"kind": "eval", "time": 1.0, "round": 0, "em": 0.35})
    for number in range(40):
        view.update(STEP | {"step": number})
    view.update({"kind": "eval", "time": 2.0, "round": 40, "em": 0.6})
    view.actors = [{"id": "host-1-abcdef", "version": [0, 40]}]
    return view


def drawn(view: RunView, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table(view, now=100.0))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_shows_the_run_at_a_glance() -> None:
    text = drawn(training_view())
    for shown in ("atlas-001", "step 40/100", "2:00 left", "35.0 → 60.0 %", "75.0 %", "8 + 16"):
        assert shown in text
    for shown in ("2,500", "25.0 %", "32 groups", "at 0.40", "0.710", "0.0123", "2.00 s"):
        assert shown in text


def test_steps_told_at_once_after_an_outage_do_not_make_a_rate_of_millions() -> None:
    view = training_view()
    view.update(STEP | {"step": 40, "seconds": 18.0, "tokens_per_s": 100.0})
    view.update(STEP | {"step": 41, "seconds": 1e-4, "tokens_per_s": 5e7})
    tokens, seconds = 8 * 5000 + 1800 + 5000, 8 * 2.0 + 18.0 + 1e-4
    assert view.tokens_per_s() == pytest.approx(tokens / seconds)
    assert RunView("atlas-001", 100, started=0.0).tokens_per_s() is None


def test_the_table_fits_a_terminal_of_eighty_columns() -> None:
    assert max(map(len, drawn(training_view(), width=80).splitlines())) <= 80
    assert "0.5 (≤1)" in drawn(training_view(), width=80)


def test_before_the_first_step_it_says_what_it_waits_for() -> None:
    view = RunView("x", 10, started=0.0)
    assert doing(view) == "starting Redis"
    view.waiting_for = ["learner", "actor-0"]
    assert line(view, 12.0) == "[0:12] step 0/10, waiting for learner, actor-0"
    view.waiting_for, view.ready = [], {"learner": 1.0}
    assert "rolling out the first groups" in drawn(view)


def test_the_time_left_leaves_the_start_out() -> None:
    view = RunView("x", 10, started=0.0)
    view.update(STEP | {"step": 0, "seconds": 60.0})
    assert view.seconds_left() is None
    for number in (1, 2):
        view.update(STEP | {"step": number})
    assert view.seconds_left() == 14.0


def test_a_warning_is_shown_and_fades() -> None:
    view = training_view()
    view.update({"kind": "warning", "time": 90.0, "text": "acceptance is low"})
    assert "! acceptance is low" in drawn(view)
    view.warning_time = -1000.0
    assert "acceptance is low" not in drawn(view)


def test_without_a_terminal_there_are_a_few_plain_lines() -> None:
    stream = io.StringIO()
    screen = screen_for(stream)
    assert isinstance(screen, PlainScreen)
    view = RunView("x", 100, started=0.0)
    for number in range(11):
        view.update(STEP | {"step": number})
        screen.show(view)
        screen.show(view)
    assert len(stream.getvalue().splitlines()) == 3
    assert "\x1b" not in stream.getvalue()


def test_times_are_read_as_on_a_clock() -> None:
    assert [clock(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_without_a_terminal_what_has_not_changed_is_seldom_said_and_a_warning_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, stream = [0.0], io.StringIO()
    monkeypatch.setattr("cli.run.progress.time.monotonic", lambda: now[0])
    screen, view = PlainScreen(stream), RunView("x", 10, started=1.0)
    view.waiting_for = ["learner"]
    for _ in range(100):
        screen.show(view)
        now[0] += 1.0
    assert stream.getvalue().count("waiting for learner") == 2
    view.warn("acceptance is low", 2.0)
    for _ in range(5):
        screen.show(view)
    assert stream.getvalue().count("! acceptance is low") == 1


def test_the_window_of_the_figures_is_named() -> None:
    assert "learner idle 25.0 % of the last 10 steps" in line(training_view(), 100.0)
    assert "of the last 10 steps" in drawn(training_view())
