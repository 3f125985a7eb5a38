"""The engine gap and the gate: mean (l_ref - l_gen)^2 at lag 0 must stay far below tau (docs/method.md, section 5)."""

from shared.settings import Replay

OF_TAU = 0.1  # above this share of tau it eats into the gate


def limit(replay: Replay) -> float:
    """A tenth of tau, in the gap's measure, which is a mean of squares."""
    return OF_TAU * (replay.tau if replay.drift == "l2" else replay.tau**2)


def reached(replay: Replay, squares: float) -> str | None:
    """The limit in words, where a mean of squares has reached it; None where it has not, or nothing is replayed."""
    if replay.policy == "none" or not squares >= limit(replay) > 0:
        return None
    tau = "replay.tau" if replay.drift == "l2" else "replay.tau^2"
    return f"{tau} / 10 is {limit(replay):.2e}"


def warning(replay: Replay, gap: float) -> str | None:
    """What to tell of a gap that is too wide."""
    if not (limit_reached := reached(replay, gap)):
        return None
    return (
        f"the engine gap is {gap:.2e}, and {limit_reached}: "
        "the difference between engine and trainer alone would eat into the gate."
    )
