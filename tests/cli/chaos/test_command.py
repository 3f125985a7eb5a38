"""What the command refuses, and what its report says."""

import io
import json
from pathlib import Path

import pytest

from cli.chaos import report
from cli.chaos.checker import Verdict
from cli.chaos.faults import Inflicted
from cli.chaos.schedule import Fault
from cli.main import main

ATLAS = Path(__file__).resolve().parents[3] / "examples" / "atlas.toml"
COUNTS = dict.fromkeys(
    [
        "lost",
        "counted_twice",
        "given_up",
        "rejected",
        "tasks",
        "attempts",
        "groups",
        "steps",
        "lineages",
        "steps_again",
    ],
    0,
)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name either a configuration"),
        ([str(ATLAS), "--check", "runs/a"], "name either a configuration"),
        ([str(ATLAS), "--minutes", "0"], "--minutes must be above 0 (given: 0)"),
        ([str(ATLAS), "--redis.url", "redis://127.0.0.1:1/0"], "leave redis.url empty"),
        ([str(ATLAS), "--against", "nowhere"], "--against nowhere: it holds no summary of a run"),
        ([str(ATLAS), "--run.root", "{tmp}", "--run.name", "there"], "is there already"),
        (["--check", "{tmp}/there"], "is not the folder of a run"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    assert main(["chaos", *(word.replace("{tmp}", str(tmp_path)) for word in words)]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_a_run_without_a_history_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.toml").write_text(f'[run]\nname = "run"\nroot = "{tmp_path}"\n')
    assert main(["chaos", "--check", str(run_dir)]) == 2
    assert "holds no manifest of an append-only file" in capsys.readouterr().err
    log = run_dir / "redis" / "appendonlydir"
    log.mkdir(parents=True)
    (log / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    (log / "appendonly.aof.1.base.rdb").write_bytes(b"REDIS0011")
    assert main(["chaos", "--check", str(run_dir), "--json"]) == 2
    said = capsys.readouterr().err
    assert "is a snapshot" in said and "judge a run that `headrace chaos` made" in said


def made(**fields: object) -> dict:
    """The report of three faults in a run of four steps."""
    inflicted = [
        Inflicted(Fault(1.0, "kill", "actor", 0.0), "actor-0", 10.0, 10.0),
        Inflicted(Fault(2.0, "kill", "redis", 0.0), "redis", 20.0, 20.0),
        Inflicted(Fault(3.0, "stop", "learner", 5.0), "learner", 21.0, 26.0, "a note"),
    ]
    records = [{"kind": "step", "time": time, "seconds": 4.0} for time in (8.0, 13.0, 30.0, 34.0)]
    summary = {"steps": 4, "em_first": 0.3, "em_last": 0.6, "eval_questions": 100, "restarts": 2, "weights_refused": 0}
    summary |= fields.pop("summary", {})  # type: ignore[arg-type]
    given = {"verdict": Verdict([], COUNTS, True, 0), "without": None, "ended": ""} | fields
    return report.report(inflicted, 3, summary=summary, records=records, **given)  # type: ignore[arg-type]


def test_recovery_is_the_time_from_the_end_of_a_fault_to_the_next_step() -> None:
    kinds = made()["kinds"]
    assert kinds["kill"] == {"times": 2, "next_step_s": 6.5, "longest_s": 10.0}
    assert kinds["stop"] == {"times": 1, "next_step_s": 4.0, "longest_s": 4.0}
    assert kinds["damage"] == {"times": 0, "next_step_s": None, "longest_s": None}


def test_a_broken_rule_or_an_early_end_fails_and_is_shown(tmp_path: Path) -> None:
    good, early = made(), made(ended="the run ended: y")
    broken = made(verdict=Verdict(["x is lost."] * 30, COUNTS, True, 0))
    short = made(verdict=Verdict([], COUNTS | {"steps": 3}, False, 1))
    assert [r["passed"] for r in (good, broken, early, short)] == [True, False, False, False]
    shown = [io.StringIO() for _ in range(4)]
    for record, file in zip((good, broken, early, short), shown, strict=True):
        report.show(record, "hurt", file)
    assert "keeps every rule" in shown[0].getvalue() and "30.0 % before, 60.0 % after" in shown[0].getvalue()
    assert "broken: x is lost." in shown[1].getvalue() and "and 10 more" in shown[1].getvalue()
    assert "the run ended: y" in shown[2].getvalue() and "keeps every rule" not in shown[2].getvalue()
    assert "the run is not at its end: the log holds 3 of 4 steps" in " ".join(shown[3].getvalue().split())
    assert json.loads(report.write(tmp_path, good).read_text()) == good


@pytest.mark.parametrize(
    ("em", "interval", "within"),
    [(0.55, (-0.1831, 0.0857), True), (0.2, (-0.5125, -0.2677), False), (0.46, (-0.2708, -0.0019), False)],
)
def test_em_outside_the_noise_of_a_run_without_faults_is_no_pass(
    em: float, interval: tuple[float, float], within: bool
) -> None:
    record = made(without={"em_last": em, "eval_questions": 100})
    assert record["em_change"] == pytest.approx(interval, abs=1e-4)
    assert record["passed"] == within
    file = io.StringIO()
    report.show(record, "hurt", file)
    assert ("within" if within else "outside") + " the noise" in " ".join(file.getvalue().split())
    assert json.loads(json.dumps(record)) == record


def test_the_interval_is_the_published_one() -> None:
    record = made(
        summary={"em_last": 48 / 80, "eval_questions": 80}, without={"em_last": 56 / 70, "eval_questions": 70}
    )
    assert record["em_change"] == pytest.approx((0.0524, 0.3339), abs=5e-5)  # Newcombe 1998, table II, row (a)


def test_a_run_that_was_never_evaluated_is_nothing_to_hold_another_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"em_last": None, "eval_questions": None}))
    assert main(["chaos", str(ATLAS), "--against", str(tmp_path)]) == 2
    assert "that run was never evaluated" in capsys.readouterr().err
    assert not made(without={"em_last": 0.6, "eval_questions": 0})["passed"]
