"""What gates of other widths would have done in a run, and which one to take: the sweep of tau without the sweep.

Each step event says, for gates at multiples of the tau in force, which share of the scanned groups they would have let
in and how large the KL of those was. The rule follows the paper's sweep on search: at 1e-3 the gate let in 6 % and
replay starved, at 1e-2 it let in 40 % and replay KL stayed flat, at 1e-1 it let in 94 % and replay KL rose nearly
fourfold. So

    starves    acceptance below STARVING, over the run or in the last third of its steps
    open       acceptance above OPEN: the gate no longer decides anything
    climbs     KL of the last third of the steps more than CLIMBS times that of the first third

and the suggestion is, of the gates that are none of these, the one whose acceptance is nearest to one half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from services.replay.adaptive import STARVING

OPEN, CLIMBS = 0.9, 2.0
BEST_ACCEPTANCE = 0.5
LESS_MOVEMENT = "A lower learner.lr or a smaller replay.capacity would leave more to replay."
LEAST_SCANNED = 100  # groups, before a suggestion means something
FACTORS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # of the run's tau


@dataclass(frozen=True)
class GateEstimate:
    """What a gate at `tau` would have done. KL is None where it would have let nothing in."""

    tau: float
    acceptance: float
    acceptance_last: float  # in the last third of the steps that scanned
    kl: float | None
    kl_first: float | None  # in the first and in the last third
    kl_last: float | None

    @property
    def climb(self) -> float | None:
        """By which factor KL rose."""
        if not self.kl_first or self.kl_last is None:
            return None
        return self.kl_last / self.kl_first

    @property
    def judgement(self) -> str:
        """starves, climbs, open, or nothing against it."""
        if min(self.acceptance, self.acceptance_last) < STARVING:
            return "starves"
        if self.climb is not None and self.climb > CLIMBS:
            return "climbs"
        return "open" if self.acceptance > OPEN else ""


def gates(steps: Sequence[Mapping[str, Any]], tau: float) -> list[GateEstimate]:
    """The gates at FACTORS of `tau`, from step events; steps that scanned nothing say nothing.

    A step whose own tau was another one (an adaptive gate) is read between its points, linearly in log tau.
    """
    scanned = [s for s in steps if s.get("scanned") and s.get("what_if_tau")]
    third = max(1, len(scanned) // 3)
    return [_gate(scanned, third, tau, factor * tau) for factor in FACTORS] if scanned else []


def suggest(found: Sequence[GateEstimate]) -> tuple[GateEstimate, str]:
    """(the gate to take, why). There must be gates."""
    good = [gate for gate in found if not gate.judgement]
    if good:
        best = min(good, key=lambda gate: abs(gate.acceptance - BEST_ACCEPTANCE))
        why = f"it lets {best.acceptance:.0%} of the scanned groups in"
        if best.climb is not None:
            why += f", and their KL does not climb (x {best.climb:.1f} from the first third of the run to the last)"
        return best, why + "."
    fed = [gate for gate in found if gate.judgement != "starves"]
    if not fed:
        best = max(found, key=lambda gate: gate.tau)
        return best, f"even this one lets only {best.acceptance:.0%} in. {LESS_MOVEMENT}"
    best = min(fed, key=lambda gate: gate.tau)
    why = f"none fits; of those that do not starve it is the tightest, and lets {best.acceptance:.0%} in"
    if best.judgement == "climbs":
        return best, f"{why}, but their KL climbs over the run. {LESS_MOVEMENT}"
    return best, f"{why}, so it hardly decides anything: try one between it and the next below."


def _gate(scanned: Sequence[Mapping[str, Any]], third: int, base: float, tau: float) -> GateEstimate:
    weights = [float(s["scanned"]) for s in scanned]
    at = [tau / float(s.get("tau") or base) for s in scanned]
    let_in = [_between(s["what_if_tau"], factor) or 0.0 for s, factor in zip(scanned, at, strict=True)]
    kl = [_between(s.get("what_if_kl") or {}, factor) for s, factor in zip(scanned, at, strict=True)]
    # a step's KL counts as much as the groups it is the mean of
    counts = [w * a for w, a in zip(weights, let_in, strict=True)]
    return GateEstimate(
        tau=tau,
        acceptance=sum(counts) / sum(weights),
        acceptance_last=sum(counts[-third:]) / sum(weights[-third:]),
        kl=_mean(kl, counts),
        kl_first=_mean(kl[:third], counts[:third]),
        kl_last=_mean(kl[-third:], counts[-third:]),
    )


def _between(values: Mapping[str, float], factor: float) -> float | None:
    """The value at a multiple of tau; the nearest one outside of the points, None without any."""
    points = sorted((math.log(float(f)), v) for f, v in values.items())
    if not points:
        return None
    x = math.log(factor)
    if x <= points[0][0] + 1e-9:
        # below the tightest gate that let anything in, nothing is known
        return points[0][1] if x >= points[0][0] - 1e-9 else None
    for (x0, v0), (x1, v1) in pairwise(points):
        if x <= x1 + 1e-9:
            return v0 + (v1 - v0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w > 0]
    total = sum(w for _, w in known)
    return sum(v * w for v, w in known) / total if total else None
