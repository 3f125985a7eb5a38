"""Which gate a run's drifts speak for. Drifts are drawn, then told in the words of a step event."""

import json
import math
import random
from pathlib import Path

import pytest

from cli.calibration import FACTORS, gates, suggest
from cli.main import main
from services.replay.stats import WHAT_IF_FACTORS, what_if_kl, what_if_tau
from shared.messages import Record

TAU = 0.02


def record(drift: float) -> Record:
    """A scanned group whose tokens all moved by the same amount, half of them up."""
    d = math.sqrt(drift)
    return Record(
        id="g",
        tokens=10,
        tokens_positive=5,
        tokens_negative=5,
        mean_p_positive=0.5,
        mean_p_negative=0.5,
        headroom=0.5,
        sum_d=0.0,
        sum_d2=10 * drift,
        max_abs_d=d,
        k3=math.cosh(d) - 1,
        dead_share=0.0,
    )


def step(number: int, drifts: list[float], tau: float = TAU) -> dict:
    """The part of a step event that is read."""
    return {
        "kind": "step",
        "time": 1.0,
        "step": number,
        "tau": tau,
        "scanned": len(drifts),
        "what_if_tau": what_if_tau(drifts, tau),
        "what_if_kl": what_if_kl([record(d) for d in drifts], tau),
    }


def drawn(median, steps: int = 30, groups: int = 12, seed: int = 0) -> list[list[float]]:
    """Drifts of every step: lognormal around `median(step)`."""
    draw = random.Random(seed)
    return [[median(n) * math.exp(draw.gauss(0, 1.2)) for _ in range(groups)] for n in range(steps)]


def test_the_factors_are_those_that_replay_reports():
    assert FACTORS == WHAT_IF_FACTORS


def test_acceptance_and_kl_are_those_of_the_groups_themselves():
    drifts = drawn(lambda n: 0.02 * (1 + n / 30))
    every = [d for of_step in drifts for d in of_step]
    for gate in gates([step(n, d) for n, d in enumerate(drifts)], TAU):
        inside = [d for d in every if d <= gate.tau]
        assert gate.acceptance == pytest.approx(len(inside) / len(every))
        if inside:
            assert gate.kl == pytest.approx(sum(record(d).k3 for d in inside) / len(inside))
        else:
            assert gate.kl is None
        last = [d for of_step in drifts[20:] for d in of_step if d <= gate.tau]
        if last:
            assert gate.kl_last == pytest.approx(sum(record(d).k3 for d in last) / len(last))


def test_the_gate_that_lets_about_half_in_and_stays_flat_is_suggested():
    best, why = suggest(gates([step(n, d) for n, d in enumerate(drawn(lambda n: 0.02))], TAU))
    assert best.tau == TAU
    assert "%" in why and "does not climb" in why


@pytest.mark.parametrize(("median", "wanted"), [(0.2, 10 * TAU), (0.002, 0.1 * TAU)])
def test_a_gate_that_is_a_decade_off_is_moved_by_a_decade(median, wanted):
    best, _ = suggest(gates([step(n, d) for n, d in enumerate(drawn(lambda n: median))], TAU))
    assert best.tau == pytest.approx(wanted)


def test_gates_that_starve_and_gates_that_stand_open_are_told_apart():
    found = gates([step(n, d) for n, d in enumerate(drawn(lambda n: 0.02))], TAU)
    assert (found[0].judgement, found[-1].judgement) == ("starves", "open")


def test_when_drift_runs_away_no_gate_fits_and_the_suggestion_says_what_would_help():
    drifts = [[0.0004 * 1.3**n * (1 + i / 6) for i in range(12)] for n in range(30)]
    found = gates([step(n, d) for n, d in enumerate(drifts)], TAU)
    assert all(gate.judgement for gate in found)
    best, why = suggest(found)
    assert best.judgement == "climbs"
    assert "KL climbs" in why and "learner.lr" in why


def test_when_nothing_is_near_the_widest_gate_is_suggested():
    best, why = suggest(gates([step(n, d) for n, d in enumerate(drawn(lambda n: 50.0))], TAU))
    assert best.tau == 100 * TAU
    assert "even this one" in why


def test_a_gate_that_moved_is_read_between_its_points():
    drifts = drawn(lambda n: 0.02, groups=200)
    fixed = gates([step(n, d) for n, d in enumerate(drifts)], TAU)
    moved = gates([step(n, d, TAU * 10 ** (0.4 * (n % 3 - 1))) for n, d in enumerate(drifts)], TAU)
    for a, b in zip(fixed[1:-1], moved[1:-1], strict=True):
        assert a.acceptance == pytest.approx(b.acceptance, abs=0.08)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The folder of a run with thirty steps that scanned."""
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f"[replay]\ntau = {TAU}\n")
    lines = "".join(json.dumps(step(n, d)) + "\n" for n, d in enumerate(drawn(lambda n: 0.02)))
    (folder / "events.jsonl").write_text(lines)
    (folder / "metrics.jsonl").write_text(lines)
    return folder


def test_the_command_prints_the_gates_and_the_suggestion(run_dir, capsys):
    assert main(["tau", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "replay.tau = 0.02: it lets" in said
    assert "starves" in said and "open" in said and "now" in said
    assert "no latency was added to retrieval" in said
    assert main(["tau", str(run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tau"] == TAU and found["scanned"] == 360 and len(found["gates"]) == len(FACTORS)


@pytest.mark.parametrize("measure", ["l2", "l1"])
def test_the_noise_of_drift_is_told_beside_the_gates_in_their_measure(run_dir, capsys, measure):
    assert main(["tau", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drift_noise"] is None
    (run_dir / "config.toml").write_text(f'[replay]\ntau = {TAU}\ndrift = "{measure}"\n')
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    told = [event | ({"learner": {"drift_noise": 2.5e-3}} if event["step"] % 10 == 1 else {}) for event in events]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))
    assert main(["tau", str(run_dir), "--json"]) == 0
    floor = json.loads(capsys.readouterr().out)["drift_noise"]
    assert floor == pytest.approx(2.5e-3 if measure == "l2" else 0.05)
    assert main(["tau", str(run_dir)]) == 0
    assert f"below {10 * floor:.2g} a gate judges rounding too" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_scanned_nothing_is_refused(run_dir, capsys):
    (run_dir / "events.jsonl").write_text(json.dumps({"kind": "step", "time": 1.0, "step": 0, "scanned": 0}) + "\n")
    assert main(["tau", str(run_dir)]) == 2
    assert "scanned no group in its 1 steps: none of them had both right and wrong" in capsys.readouterr().err
    mixed = {"kind": "step", "time": 1.0, "step": 0, "scanned": 0, "mixed_groups": 3}
    (run_dir / "events.jsonl").write_text(json.dumps(mixed) + "\n")
    assert main(["tau", str(run_dir)]) == 2
    assert "make a longer run" in capsys.readouterr().err
    (run_dir / "config.toml").write_text(f'[replay]\npolicy = "uniform"\ntau = {TAU}\n')
    assert main(["tau", str(run_dir)]) == 2
    assert "a policy with a gate is needed" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["tau", str(tmp_path / "runs" / "nope")]) == 2
    assert f"there is no run folder {tmp_path / 'runs' / 'nope'}" in capsys.readouterr().err


def test_a_run_under_a_gate_of_zero_is_refused(run_dir, capsys):
    (run_dir / "config.toml").write_text("[replay]\ntau = 0\n")
    assert main(["tau", str(run_dir)]) == 2
    assert "replay.tau = 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replay.tau", "0.1"], "would change nothing of a run that was made"),
        (["--steps", "1"], "--steps 1"),
    ],
)
def test_words_that_make_no_sense_are_refused(run_dir, capsys, words, said):
    assert main(["tau", str(run_dir), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert main(["tau", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
