"""A gate that follows the run: looser while replay starves, tighter while replay KL climbs. Off by default.

The picture it steers by is the paper's sweep of tau on search: at 1e-3 the gate accepts 6 % and replay starves; at
1e-2 it accepts 40 % and replay KL stays flat; at 1e-1 it accepts 94 %, so it no longer decides anything, and replay KL
climbs. Hence, after every step,

    acceptance < STARVING                                   tau up by LOOSEN
    acceptance > OPEN and recent KL > CLIMBING x usual KL   tau down by TIGHTEN
    else                                                    tau stays

within `replay.adaptive_tau` decades of `replay.tau`. Between the two conditions lies a band in which nothing moves, so
one never undoes the other. Recent and usual KL are moving averages over about RECENT and USUAL steps. The state is
part of the run's counters: a restarted process goes on with the same gate.
"""

import msgspec

# Where fewer of the scanned groups are accepted replay starves, also to warnings, calibration and alerts: between the
# 6.4 % of the paper's sweep that starved and the 40.2 % that did not, by factor nearly as far from either.
STARVING = 0.15
OPEN = 0.6
LOOSEN, TIGHTEN = 10**0.125, 10**0.25
RECENT, USUAL = 8, 100
CLIMBING = 1.3


class Gate(msgspec.Struct, frozen=True):
    """The gate between two steps. KL is the mean k3 of a step's replayed groups; None: none was replayed yet."""

    tau: float
    recent_kl: float | None = None
    usual_kl: float | None = None


def bounds(base: float, decades: float) -> tuple[float, float]:
    """The least and the largest tau allowed."""
    return base / 10**decades, base * 10**decades


def clamped(gate: Gate, base: float, decades: float) -> Gate:
    """The gate within the bounds, which a resumed run may have moved."""
    least, most = bounds(base, decades)
    return msgspec.structs.replace(gate, tau=min(max(gate.tau, least), most))


def adapt(gate: Gate, base: float, decades: float, acceptance: float | None, kl: float | None) -> Gate:
    """The gate after a step. acceptance: of the groups it scanned; None: it scanned none. kl: of what it replayed."""
    recent, usual = _average(gate.recent_kl, kl, RECENT), _average(gate.usual_kl, kl, USUAL)
    tau = gate.tau
    if acceptance is not None and acceptance < STARVING:
        tau *= LOOSEN
    elif acceptance is not None and acceptance > OPEN and recent is not None and usual is not None:
        tau /= TIGHTEN if recent > CLIMBING * usual else 1.0
    return clamped(Gate(tau, recent, usual), base, decades)


def _average(average: float | None, value: float | None, steps: int) -> float | None:
    if value is None or average is None:
        return average if value is None else value
    return average + (value - average) / steps
