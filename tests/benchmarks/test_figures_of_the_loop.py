"""The benchmarks of the loop at tiny sizes: a real replay process and a real Redis, and numbers that are finite."""

import json
import math

import pytest

from benchmarks import against_trl, async_over_sync, bubble, growth, growth_page, hidden_scan, real_arms, seats
from benchmarks.figure import Figure
from benchmarks.load import WARM_UP, Load
from benchmarks.simulated import simulate
from shared.errors import UserError

pytestmark = pytest.mark.slow
TINY = {"batch": 4, "slots": 2, "step_s": 0.02, "steps": 2, "repetitions": 1}


def check(figures: list[Figure]) -> None:
    for figure in figures:
        assert all(math.isfinite(value) for value in [*figure.ours, *figure.peer, *figure.ratios]), figure


def test_a_bubble_is_between_nothing_and_all_and_no_length_is_lost():
    figures = bubble.measure(**TINY, lags=(2,))
    check(figures)
    assert all(0 <= figure.ours[0] <= 100 for figure in figures if figure.unit == "%")
    assert [figure.name for figure in figures if figure.peer] == ["bubble, max_lag 2: length trained"]


def test_steps_are_timed_with_lag_and_without():
    check(async_over_sync.measure(**TINY))


def test_scans_and_step_times_of_the_arms_are_finite():
    figures = hidden_scan.measure(**TINY | {"steps": 3}, lags=(1,))
    check(figures)
    assert {figure.name.split(",")[0] for figure in figures} == {"hidden scan", "replay for fresh"}


def test_a_simulated_run_trains_each_task_once_and_replays_what_passes_the_gate():
    load = Load(batch=4, slots=2, steps=4, step_s=0.02, policy="headroom_drift", select=2, stored=12)
    seen = simulate(load)
    assert len(seen.trained) == len(set(seen.trained)) == 4 * load.steps
    assert set(seen.trained) <= set(seen.begun) and len(seen.step_s) == load.steps
    assert [event["step"] for event in seen.events] == list(range(WARM_UP, WARM_UP + load.steps))
    assert all(event["replay_groups"] <= 2 for event in seen.events) and seen.total("replay_groups") > 0


def test_growth_is_an_exponent_of_each_part_along_each_axis_with_a_table_and_a_plot(tmp_path):
    plot = tmp_path / "growth.png"
    figures = growth.measure(buffers=(128, 256), actors=(1,), tokens=(8,), group_sizes=(2,), batch=4, steps=2,
                             hidden=64, layers=1, trained=64, rounds=1, plot=str(plot))  # fmt: skip
    check(figures)
    assert len(figures) == 2 + 3 * 3 + 1
    assert plot.stat().st_size > 0 and "| 256 |" in plot.with_suffix(".md").read_text()


def test_rows_are_measured_in_rounds_that_go_forth_and_back():
    seen = []
    rows = {("actors", n): lambda r, n=n: seen.append((r, n)) or {"replay": float(10 * r + n)} for n in (1, 2, 4)}
    table = growth.measured(rows, 2)
    assert seen == [(0, 1), (0, 2), (0, 4), (1, 4), (1, 2), (1, 1)]
    assert table == {"actors": {"replay": {1: [1.0, 11.0], 2: [2.0, 12.0], 4: [4.0, 14.0]}}}


def test_an_exponent_is_the_power_of_the_size_in_each_round():
    points = {10: [3.0, 5.0], 100: [300.0, 5.0], 1000: [30_000.0, 5.0]}
    assert growth_page.exponents(points) == pytest.approx([2.0, 0.0], abs=1e-9)


def test_what_grows_faster_than_its_work_is_marked_and_where():
    flat, late, linear = ({10: [1.0], 100: [1.0], 1000: [x]} for x in (1.0, 2.0, 10.0))
    parts = {"flat": flat, "late": late, "linear": linear}
    assert [growth_page.faster(parts, part) for part in parts] == ["no", *["**over all and at the end**"] * 2]
    work = {10: [1.0], 100: [10.0], 1000: [100.0]}
    with_work = {"selection": late, growth_page.PASS: work}
    assert [growth_page.faster(with_work, part) for part in with_work] == ["no", "is the work"]


def test_attention_is_half_where_it_is_as_much_as_the_rest():
    assert growth_page.half_attention({n: [4.0 + 0.002 * n] for n in (100, 400, 8000)}) == pytest.approx(2000)


def test_without_an_environment_that_has_trl_nothing_is_held_against_it():
    assert against_trl.measure() == []
    first = next(against_trl.prompts())
    assert [message["role"] for message in first["prompt"]] == ["system", "user"] and first["answer"].isdigit()


def test_finished_runs_of_a_study_are_read_seed_by_seed(tmp_path):
    for arm, seconds in (("b-HD-b-over-2", 4.0), ("b-naive-b-over-2", 5.0), ("1.5-b", 8.0)):
        for seed in (2, 10, 9, 11):
            folder = tmp_path / "runs" / f"{arm}-s{seed}"
            folder.mkdir(parents=True)
            step = {"seconds": seconds + seed, "scanned": 3, "scan_hidden_s": 0.9, "scan_s": 1.0}
            (folder / "metrics.jsonl").write_text(f"{json.dumps(step)}\n" * 5)
            if seed < 11 and (arm, seed) != ("1.5-b", 9):
                (folder / "trained.json").write_text("{}")
    over_naive, hidden, over_fresh = real_arms.measure(study=str(tmp_path))
    assert over_naive.ratios == [6 / 7, 14 / 15] and over_fresh.ratios == [6 / 10, 14 / 18], "seeds 2 and 10"
    assert hidden.ours == [pytest.approx(90.0)] * 2


def test_a_study_without_finished_runs_is_refused_by_its_name(tmp_path):
    with pytest.raises(UserError, match="holds no seed that has finished runs of b \\+ HD b/2"):
        real_arms.measure(study=str(tmp_path))


@pytest.mark.alone
def test_seats_by_running_rollouts_are_used_better_than_seats_by_group():
    [figure] = seats.measure(groups=2, group_size=4, tasks=16, mean_s=0.05, repetitions=1)
    assert (figure.ratio or 0) > 1


@pytest.mark.slow
def test_the_plain_loop_waits_once_a_turn() -> None:
    from benchmarks import multi_turn
    from examples.atlas.rollout import MAX_SEARCHES

    waits = []

    def search(queries: list[str]) -> list[tuple[str, str]]:
        waits.append(len(queries))
        return [("Title", "Nothing.")] * len(queries)

    tokenizer, model = multi_turn.policy()
    episodes = multi_turn.play(model, tokenizer, ["Who founded the mill?"] * 8, search)
    assert 1 <= sum(map(bool, waits)) <= MAX_SEARCHES
    assert sum(e.searches for e in episodes) == sum(waits)
    assert all(any(e.sampled) and len(e.sampled) == len(e.ids) for e in episodes)
