"""From step events to the figures of a run, and from those to the words and tables of a report."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cli.compare import plots, tables
from cli.compare.document import Heading, Picture, Table, Text, as_html, as_markdown
from cli.compare.figures import PARTS, RunFigures, figures_of
from cli.compare.results import Results
from cli.compare.study import Study, read_study

PARTS_S = {"wait_s": 4.0, "scan_s": 0.25, "fetch_s": 0.05, "reference_s": 0.2, "train_s": 0.75, "publish_s": 0.1}


def step(number: int, *, step_s: float = 6.0, ages: tuple[int, ...] = (), right: float = 0.5) -> dict:
    return {
        "step": number,
        "seconds": 99.0,
        "fresh_groups": 4,
        "taken_groups": 4,
        "replay_groups": len(ages),
        "groups_generated": 4 * (number + 1),
        "mixed_groups": 2,
        "scanned": 2 * len(ages),
        "accepted": len(ages),
        "acceptance": 0.5 if ages else None,
        "ages": list(ages),
        "distinct_ages": len(set(ages)),
        "reuse": {"max": 3, "gini": 0.25, "top_tenth": 0.2} if ages else None,
        "what_if_tau": {"0.1": 0.1, "1": 0.5, "10": 1.0} if ages else {},
        "what_if_kl": {"0.1": 1e-4, "1": 1e-3, "10": 1e-2} if ages else {},
        "correct_share": right,
        "reward_mean": right,
        "tokens_sampled": 100,
        "scan_exposed_s": 0.0,
        "headroom_mean": 0.8,
        "learner": PARTS_S | {"step_s": step_s, "replay_kl": 0.002 if ages else 0.0, "entropy": 0.3},
    }


def figures(arm: str, seed: int, steps: list[dict], quality: dict | None = None) -> RunFigures:
    return figures_of(arm, seed, 8, 2, steps, {"seconds": 50.0, "peak_memory_bytes": 10, "restarts": 0}, quality or {})


def test_step_time_leaves_the_first_step_out_and_is_the_learners_clock():
    s = figures("b", 0, [step(0, step_s=60.0), step(1, step_s=5.0), step(2, step_s=7.0)]).scalars
    assert s["step_s"] == pytest.approx(6.0)
    assert s["step_s"] and s["waiting_share"] == pytest.approx(4.0 / s["step_s"])
    assert s["waiting_s"] == pytest.approx(4.0) and s["training_s"] == pytest.approx(1.0)
    assert s["scanning_s"] == pytest.approx(0.25) and s["publishing_s"] == pytest.approx(0.1)
    assert sum(s[f"{part}_s"] or 0.0 for part in [*PARTS, "other"]) == pytest.approx(s["step_s"])


def test_responses_are_counted_by_what_was_generated_trained_and_replayed():
    s = figures("b", 0, [step(0), step(1, ages=(1, 1)), step(2, ages=(1, 2))]).scalars
    assert (s["fresh_responses"], s["trained_responses"], s["replayed_responses"]) == (96, 96, 32)


def test_responses_of_groups_that_are_not_whole_are_counted_as_the_batch_does():
    parts = [
        step(0) | {"rollouts_generated": 32, "fresh_rollouts": 30, "replay_rollouts": 0},
        step(1, ages=(1, 1)) | {"rollouts_generated": 63, "fresh_rollouts": 31, "replay_rollouts": 2},
    ]
    s = figures("exgrpo", 0, parts).scalars
    assert (s["fresh_responses"], s["trained_responses"], s["replayed_responses"]) == (63, 61, 2)


def test_replay_is_described_by_gate_depth_ages_and_reuse():
    run = figures("hd", 0, [step(0), step(1, ages=(1, 1)), step(2, ages=(1, 4))])
    s = run.scalars
    assert s["acceptance"] == 0.5 and s["filled"] == pytest.approx(4 / 6)
    assert run.ages == Counter({1: 3, 4: 1})
    assert (s["age"], s["age_max"], s["age_3_share"], s["distinct_ages"]) == (1.75, 4, 0.25, 1.5)
    assert (s["reuse_max"], s["reuse_gini"]) == (3, 0.25)
    assert s["replay_kl"] == pytest.approx(0.002)


def test_late_figures_are_of_the_last_third_of_all_steps():
    steps = [step(n, ages=(1, 1) if n in (0, 1, 5) else ()) for n in range(6)]
    steps[5]["learner"]["replay_kl"] = 0.008
    assert figures("hd", 0, steps).scalars["replay_kl_late"] == pytest.approx(0.008)
    steps[5]["replay_groups"] = 0
    assert figures("hd", 0, steps).scalars["replay_kl_late"] is None


def test_a_run_without_replay_has_no_figures_of_it():
    s = figures("b", 0, [step(0), step(1)]).scalars
    assert [s[key] for key in ("acceptance", "scanned", "age", "replay_kl", "distinct_ages")] == [None] * 5


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two arms, three seeds: replay takes longer, and right answers do not differ."""
    (tmp_path / "base.toml").write_text('[model]\npath = "m"\n')
    file = tmp_path / "study.toml"
    file.write_text(
        f'[study]\nname = "s"\nbase = "base.toml"\nroot = "{tmp_path}"\nseeds = [0, 1, 2]\nfresh_groups = 128\n'
        '[[arm]]\nname = "b"\nsettings = { "replay.policy" = "none" }\n[[arm]]\nname = "b + HD b/2"\n'
    )
    study: Study = read_study(file)
    study.folder.mkdir()
    arms: dict[str, list[RunFigures]] = {"b": [], "b + HD b/2": []}
    for seed, wobble in enumerate((0.02, -0.05, 0.04)):
        plain = [step(n, step_s=5.0 + seed, right=0.4 + n / 20 + wobble) for n in range(4)]
        ages = ((), (1, 1), (1, 2), (2, 3))
        replay = [step(n, step_s=5.5 + 1.1 * seed, ages=ages[n], right=0.4 + n / 20) for n in range(4)]
        arms["b"].append(figures("b", seed, plain, {"mean_at_k": 0.5 + wobble, "best_at_k": 0.8}))
        arms["b + HD b/2"].append(figures("b + HD b/2", seed, replay, {"mean_at_k": 0.51, "best_at_k": 0.9}))
    note = {"steps": 4, "stopped_at_budget": False, "seconds": 30.0, "busy_before": 0.0, "busy_after": 0.5,
            "place": {"machine": "2 cores", "commit": "abc"}}  # fmt: skip
    return Results(study, arms, {run.name: note for run in study.runs}, [])


def test_differences_are_paired_by_seed_and_noise_is_called_noise(results):
    found = {d.figure: d for d in tables.all_differences(results)}
    time = found["step_s"]
    assert time.is_ratio and time.interval.value == pytest.approx(1.1) and time.verdict == "higher"
    assert (time.interval.low, time.interval.high) == pytest.approx((1.1, 1.1)), (
        "the same ratio for every seed, although seeds differ"
    )
    assert found["mean_at_k"].verdict == "inside the noise"
    assert found["best_at_k"].interval.value == pytest.approx(0.1) and found["best_at_k"].verdict == "higher"


def test_the_report_says_what_is_missing_and_that_the_machine_was_not_idle(results):
    said = as_markdown(tables.opening(results), Path())
    assert "not idle" in said and "Not complete" not in said
    results.missing.append("b-s9")
    assert "1 runs are missing: b-s9" in as_markdown(tables.opening(results), Path())


def test_the_report_says_how_many_differences_chance_alone_would_find(results):
    said = as_markdown(tables.differences(results), Path())
    assert "of 4, about 0.2 would" in said and said.count("| b + HD b/2 |") == 4


def test_the_report_says_beside_the_table_what_few_seeds_are_worth(results):
    assert "Fewer than 4 seeds" in as_markdown(tables.differences(results), Path())
    for runs in results.arms.values():
        runs.append(replace(runs[0], seed=3))
    assert "Fewer than" not in as_markdown(tables.differences(results), Path())
    for arm in results.arms:
        results.arms[arm] = results.arms[arm][:1]
    assert "Fewer than" not in as_markdown(tables.differences(results), Path()), "one seed has no interval at all"


def test_tables_show_means_with_half_intervals_and_no_empty_columns(results):
    table = tables.headline(results)
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["step time"].startswith("6.00 ± ") and row["step time"].endswith(" s")
    assert row["Best@32"] == "0.8000" and row["steps"] == "4"
    assert "groups dropped" not in table.head
    assert [row[0] for row in tables.replayed(results).rows] == ["b + HD b/2"]


@pytest.mark.slow
def test_every_picture_is_drawn_and_drawn_the_same_again(results, tmp_path):
    first = plots.draw_all(results.arms, tmp_path / "a", 32)
    assert set(first) == {"step_time", "quality", "training", "replay", "ages", "what_if"}
    second = plots.draw_all(results.arms, tmp_path / "b", 32)
    assert all(first[name].read_bytes() == second[name].read_bytes() for name in first)


def test_a_document_is_the_same_in_both_forms(tmp_path):
    picture = tmp_path / "plots" / "p.png"
    picture.parent.mkdir()
    picture.write_bytes(b"\x89PNG")
    blocks = [
        Heading("Title", 1),
        Text("a < b, **sure**, `x.y`"),
        Table(("arm", "v|w"), [("b | c", "1")]),
        Picture(picture, 'what "it" says'),
    ]
    markdown, page = as_markdown(blocks, tmp_path), as_html(blocks, "T & t")
    assert "# Title" in markdown and "| b \\| c | 1 |" in markdown and '![what "it" says](plots/p.png)' in markdown
    assert "a &lt; b, <strong>sure</strong>, <code>x.y</code>" in page and "<title>T &amp; t</title>" in page
    assert "data:image/png;base64,iVBORw==" in page and "http" not in page
