"""The engine gap and the gate: mean (l_ref - l_gen)^2 at lag 0 must stay far below tau (docs/method.md, section 5)."""

from shared.config import Config

OF_TAU = 0.1  # above this share of tau it eats into the gate


def limit(config: Config) -> float:
    """A tenth of tau, in the gap's measure, which is a mean of squares; 0 where Drift decides nothing."""
    if not config.drift_decides:
        return 0.0
    return OF_TAU * (config.replay.tau if config.replay.drift == "l2" else config.replay.tau**2)


def reached(config: Config, squares: float) -> str | None:
    """The limit in words, where a mean of squares has reached it; None where it has not, or there is no gate."""
    if not squares >= limit(config) > 0:
        return None
    tau = "replay.tau" if config.replay.drift == "l2" else "replay.tau^2"
    return f"{tau} / 10 is {limit(config):.2e}"


def warning(config: Config, gap: float) -> str | None:
    """What to tell of a gap that is too wide."""
    if not (limit_reached := reached(config, gap)):
        return None
    return (
        f"the engine gap is {gap:.2e}, and {limit_reached}: "
        "the difference between engine and trainer alone would eat into the gate."
    )


class OnceEach:
    """A figure that stays too large is told once, and again when it has doubled."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def is_news(self, cause: str, figure: float) -> bool:
        """Whether it is to be told now; it is then taken as told."""
        if figure < 2 * self._told.get(cause, 0.0):
            return False
        self._told[cause] = figure
        return True
