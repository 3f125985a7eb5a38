"""The gate that follows the run: bounded, still where nothing is wrong, and never undoing itself."""

import random
from pathlib import Path

import pytest
import yaml

from services.replay.adaptive import CLIMBING, LOOSEN, OPEN, STARVING, TIGHTEN, Gate, adapt, bounds, clamped
from tests.replay.test_service import run_to_the_end

BASE, DECADES = 1e-2, 1.0
ROOT = Path(__file__).resolve().parents[2]


def drawn_steps(rng: random.Random, n: int) -> list[tuple[float | None, float | None]]:
    return [(rng.choice([None, 0.0, rng.random()]), rng.choice([None, rng.expovariate(500), 0.0])) for _ in range(n)]


def test_tau_never_leaves_its_bounds():
    rng = random.Random(0)
    for _ in range(100):
        decades = rng.choice([0.5, 1.0, 3.0])
        gate, (least, most) = Gate(BASE), bounds(BASE, decades)
        for acceptance, kl in drawn_steps(rng, 60):
            gate = adapt(gate, BASE, decades, acceptance, kl)
            assert least <= gate.tau <= most


def test_a_step_loosens_only_when_starving_and_tightens_only_when_open_and_climbing():
    rng = random.Random(1)
    gate = Gate(BASE)
    for acceptance, kl in drawn_steps(rng, 2000):
        before, gate = gate.tau, adapt(gate, BASE, DECADES, acceptance, kl)
        if gate.tau > before:
            assert acceptance is not None and acceptance < STARVING
            assert gate.tau <= before * LOOSEN * (1 + 1e-12)
        if gate.tau < before:
            assert acceptance is not None and acceptance > OPEN
            assert gate.recent_kl is not None and gate.usual_kl is not None
            assert gate.recent_kl > CLIMBING * gate.usual_kl
            assert gate.tau >= before / TIGHTEN * (1 - 1e-12)


@pytest.mark.parametrize("kl", [0.0, 0.002, 0.1])
def test_a_flat_kl_never_tightens_whatever_its_height(kl: float):
    gate = Gate(BASE)
    for _ in range(200):
        gate = adapt(gate, BASE, DECADES, 0.95, kl)
    assert gate.tau == BASE


def test_a_run_that_starves_reaches_the_upper_bound_and_stays():
    gate = Gate(BASE)
    for _ in range(8):  # eight eighths of a decade
        gate = adapt(gate, BASE, DECADES, 0.05, None)
    assert gate.tau == pytest.approx(BASE * 10)
    assert adapt(gate, BASE, DECADES, 0.05, None).tau == BASE * 10


@pytest.mark.parametrize("steps", [60, 200])
def test_a_kl_that_climbs_as_in_the_papers_sweep_tightens_the_gate(steps: int):
    """.0045 to .017 at 94 % acceptance."""
    gate = Gate(BASE)
    for step in range(steps):
        gate = adapt(gate, BASE, DECADES, 0.94, 0.0045 * (0.017 / 0.0045) ** (step / steps))
    assert gate.tau < BASE


def test_a_kl_that_is_only_noisy_hardly_ever_tightens():
    rng = random.Random(4)
    gate, tightened = Gate(BASE), 0
    for _ in range(1000):
        before, gate = gate.tau, adapt(Gate(BASE, gate.recent_kl, gate.usual_kl), BASE, 3.0, 0.94, rng.gauss(1.0, 0.3))
        tightened += gate.tau < before
    assert tightened < 20


def test_a_step_that_scanned_or_replayed_nothing_changes_no_tau():
    gate = Gate(0.02, recent_kl=0.01, usual_kl=0.001)
    assert adapt(gate, BASE, DECADES, None, None) == gate


def test_the_rule_knows_no_units():
    rng = random.Random(2)
    one, other = Gate(BASE), Gate(BASE * 64)
    for acceptance, kl in drawn_steps(rng, 300):
        one = adapt(one, BASE, DECADES, acceptance, kl)
        other = adapt(other, BASE * 64, DECADES, acceptance, None if kl is None else kl * 64)
        assert other.tau == pytest.approx(64 * one.tau)


def test_a_resumed_run_with_another_tau_starts_within_its_bounds():
    assert clamped(Gate(0.5), BASE, DECADES).tau == pytest.approx(0.1)
    assert clamped(Gate(1e-6), BASE, DECADES).tau == pytest.approx(1e-3)


@pytest.mark.slow
async def test_a_run_follows_the_rule_through_crashes_of_replay(make_config):
    config = make_config(run={"steps": 20}, replay={"tau": 1e-4, "adaptive_tau": 1.0})
    state, _, records = await run_to_the_end(config, crashes=8)
    steps = [r for r in records if r["kind"] == "step"]
    gate = Gate(1e-4)
    for step in steps:
        assert step["tau"] == pytest.approx(gate.tau)
        gate = adapt(gate, 1e-4, 1.0, step["acceptance"], 0.0 if step["replay_groups"] else None)
    assert steps[-1]["tau"] > 5e-4, "nothing passes a gate of 1e-4, so it was opened"
    assert state.counters.gate is not None and state.counters.gate.tau == pytest.approx(gate.tau)


async def test_without_the_option_tau_stays(make_config):
    _, _, records = await run_to_the_end(make_config(replay={"tau": 1e-4}))
    assert {r["tau"] for r in records if r["kind"] == "step"} == {1e-4}


def test_what_starves_is_the_same_for_everybody_who_speaks_of_it():
    alerts = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    rules = {rule["alert"]: rule["expr"] for group in alerts["groups"] for rule in group["rules"]}
    assert f"acceptance_ratio < {STARVING:g} " in rules["HeadraceAcceptanceCollapsed"]
    for page in ("docs/comparisons.md", "docs/method.md"):
        text = (ROOT / page).read_text()
        assert f"{STARVING:.0%}".replace("%", " %") in text, page
