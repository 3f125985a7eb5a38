"""The summary of a run is a function of its events."""

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from cli.run import artefacts, ending
from cli.run.curves import draw
from cli.run.ending import of_the_policy
from cli.run.samples import as_markdown, before_and_after
from cli.run.summary import has_saved, summarise

NEEDED = {
    *("steps", "seconds", "em_first", "em_last", "reward_first", "reward_last", "groups_generated", "groups_trained"),
    *("groups_replayed", "groups_lost", "groups_trained_twice", "learner_idle_share", "scan_seconds_hidden"),
    *("scan_seconds_exposed", "selection_ms_p99", "publish_to_swap_ms_p50", "engine_gap", "acceptance"),
    *("payload_bytes_in", "payload_bytes_out", "peak_memory_bytes", "seconds_to_ready"),
}


def step(number: int, **more: object) -> dict:
    learner = {"wait_s": 0.5, "scan_s": 0.25, "train_s": 1.0, "step_s": 2.0, "payload_bytes_read": 700.0}
    learner |= {"engine_gap": 1e-12, "replay_kl": 0.002}
    record = {"kind": "step", "time": 100.0 + number, "step": number, "seconds": 2.0, "reward_mean": 0.1 * number}
    record |= {"correct_share": 0.1 * number, "fresh_groups": 16, "replay_groups": 8 if number else 0}
    record |= {"accepted": 8 if number else 0, "scanned": 10 if number else 0, "lag_mean": 0.5, "lag_max": 1}
    record |= {"selection_ms": 0.5, "scan_exposed_s": 0.0, "scan_hidden_s": 0.25, "selection_wait_s": 0.125}
    record |= {"groups_generated": 16 * (number + 1)}
    record |= {"groups_lost": 0, "groups_failed": 0, "groups_trained_twice": 0, "payload_bytes_in": 500 * (number + 1)}
    record |= {"tokens_per_s": 1000.0, "tokens_sampled": 2000, "age_mean": 1.5 if number else None}
    return record | {"learner": learner, "version": [0, number + 1]} | more


def rollout(round: int, question: str, correct: bool) -> dict:
    fields = {"round": round, "question": question, "correct": correct, "reward": float(correct), "ground_truth": ["X"]}
    return {"kind": "rollout", "task_kind": "eval", "time": 1.0, "text": f"[policy] {question} ```", **fields}


def records() -> list[dict]:
    return [
        {"kind": "session", "time": 90.0},
        {"kind": "ready", "time": 92.0, "service": "replay", "seconds": 2.0},
        {"kind": "eval", "time": 99.0, "round": 0, "em": 0.35, "n": 400, "per_source": {}},
        rollout(0, "who", correct=False),
        *[step(n) for n in range(4)],
        {"kind": "swap", "time": 104.0, "actor": "a", "version": "0.1", "seconds": 0.08, "stall_s": 0.04},
        {"kind": "memory", "time": 104.0, "peak_bytes": 2**31, "measure": "PSS"},
        {"kind": "eval", "time": 105.0, "round": 4, "em": 0.75, "n": 400, "per_source": {}},
        rollout(4, "who", correct=True),
        {"kind": "finished", "time": 106.0, "step": 4},
        {"kind": "stopped", "time": 110.0, "seconds": 1.0},
    ]


def test_the_noise_of_drift_is_the_median_of_the_steps_that_measured_it() -> None:
    assert summarise(records())["drift_noise"] is None
    measured = [step(n, learner={"drift_noise": noise}) for n, noise in enumerate([1e-3, 5e-3, 2e-3])]
    assert summarise([step(9), *measured])["drift_noise"] == 2e-3


def test_what_only_some_policies_do_is_told_only_by_them() -> None:
    assert of_the_policy({"groups_filtered": 0, "groups_regenerated": None}) == ""
    summary = summarise([step(0, groups_filtered=9, groups_regenerated=4)])
    assert of_the_policy(summary) == ", 9 left untrained, 4 of prompts asked again"


def test_the_summary_has_every_figure() -> None:
    summary = summarise(records())
    assert [key for key in NEEDED if summary.get(key) is None] == []
    assert summary["steps"] == 4
    assert (summary["em_first"], summary["em_last"]) == (0.35, 0.75)
    assert summary["seconds"] == 20.0
    assert summary["groups_trained"] == 64
    assert summary["groups_replayed"] == 24
    assert (summary["selection_seconds_waited"], summary["scan_seconds_exposed"]) == (0.5, 0.0)
    assert summary["acceptance"] == pytest.approx(0.8)
    assert summary["learner_idle_share"] == pytest.approx(0.25)
    assert summary["publish_to_swap_ms_p50"] == pytest.approx(80)
    assert summary["payload_bytes_in_per_group"] == pytest.approx(2000 / 64)
    assert summary["payload_bytes_out"] == 2800
    assert summary["finished"]


def test_a_step_trained_again_counts_once_and_pauses_do_not_count() -> None:
    crashed = [{"kind": "session", "time": 0.0}, step(0), step(1), step(2) | {"time": 110.0}]
    resumed = [{"kind": "session", "time": 5000.0}, step(1) | {"time": 5010.0, "reward_mean": 0.9}]
    summary = summarise(crashed + resumed)
    assert summary["steps"] == 2
    assert summary["reward_last"] == 0.9
    assert summary["seconds"] == 120.0


def test_a_run_resumed_for_more_steps_has_finished_when_those_are_trained() -> None:
    resumed = [*records(), {"kind": "session", "time": 200.0, "steps": 8}, step(4)]
    assert not summarise(resumed)["finished"]
    assert summarise([*resumed, {"kind": "finished", "time": 300.0, "step": 8}])["finished"]
    assert summarise([*records(), {"kind": "session", "time": 200.0, "steps": 4}])["finished"]  # watched again


def test_a_run_without_a_step_has_a_summary_too() -> None:
    summary = summarise([{"kind": "session", "time": 1.0}])
    assert summary["steps"] == 0
    assert summary["em_first"] is None
    assert summary["learner_idle_share"] is None


def test_numbers_that_are_not_finite_are_left_out() -> None:
    broken = step(1)
    broken["selection_ms"] = math.nan
    assert summarise([step(0), broken])["selection_ms_p99"] == 0.5


def test_samples_show_one_question_before_and_after() -> None:
    (before, after) = before_and_after(records())[0]
    assert not before["correct"]
    assert after["correct"]
    text = as_markdown(records())
    assert text.index("Before training, wrong (reward 0)") < text.index("After training, right (reward 1)")
    assert text.count("```") == 4, "a transcript cannot end its block"


def test_a_prompt_that_is_asked_again_for_training_is_no_held_out_question() -> None:
    again = rollout(9, "who", correct=True) | {"task_kind": "again"}
    assert before_and_after([*records(), again]) == before_and_after(records())
    assert "## From training" in as_markdown([again])


@pytest.mark.slow
def test_the_curves_are_drawn_whatever_was_measured(tmp_path: Path) -> None:
    unscored = {"kind": "eval", "time": 103.0, "round": 2, "em": None, "n": 0, "per_source": {}}
    for name, events in (("full", [*records(), unscored]), ("one", [step(0)])):
        draw(events, tmp_path / f"{name}.png", name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_steps_lost_with_a_damaged_checkpoint_are_counted_once(tmp_path: Path) -> None:
    def said(first: int, end: int) -> dict[str, object]:
        return {"kind": "warning", "time": 1.0, "text": "", "lost_from": first, "lost_to": end}

    twice = [*records(), said(2, 4), said(2, 4)]
    summary = summarise(twice)
    assert (summarise(records())["steps_lost"], summary["steps_lost"]) == (0, 2)
    assert summarise([*twice, said(8, 9), said(3, 6)])["steps_lost"] == 5
    console = Console(width=120, record=True)
    console.print(ending.summary_table(tmp_path, summary))
    assert "2, with a checkpoint that was damaged" in console.export_text()


def test_final_points_at_the_newest_checkpoint(tmp_path: Path) -> None:
    assert artefacts.link_final(tmp_path) is None
    for number in (9, 10):
        (tmp_path / "checkpoints" / f"step_{number}").mkdir(parents=True)
        artefacts.link_final(tmp_path)
    assert (tmp_path / "final").resolve().name == "step_10"


def test_the_ending_shows_what_was_learned_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "atlas-001"
    run_dir.mkdir()
    (run_dir / "events.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records()))
    ending.print_summary(run_dir, artefacts.write(run_dir, pictures=False))
    ending.print_samples(run_dir)
    said = capsys.readouterr().out
    for shown in ("35.0 → 75.0 % (+40.0 points)", "64 generated", "2.00 GiB (PSS)", "before: wrong", "after: right"):
        assert shown in said
    assert "atlas-001/summary.json" in said
    assert "atlas-001/final" not in said, "there is no checkpoint"


def test_a_run_stopped_before_its_first_step_has_an_ending_too(tmp_path: Path) -> None:
    ending.print_summary(tmp_path, summarise([{"kind": "session", "time": 1.0}]))


def test_what_was_sampled_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [r | {"text": "red \x1b[31m\x1b]0;title\x07\nnext line"} if "text" in r else r for r in records()]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(r) + "\n" for r in said))
    ending.print_samples(tmp_path)
    shown = capsys.readouterr().out
    assert "next line" in shown and "\x1b" not in shown and "\x07" not in shown


def test_a_run_has_saved_where_its_learner_says_so_and_not_where_replay_began_again() -> None:
    replays = {"kind": "resumed", "time": 1.0, "service": "replay", "version": "1.0", "step": 0}
    assert not has_saved([replays, {"kind": "resumed", "time": 2.0, "step": 0, "lineage": 1}])
    assert has_saved([replays, {"kind": "resumed", "time": 2.0, "step": 2, "lineage": 1}])
