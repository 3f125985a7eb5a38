"""A line through what was measured, and whether it climbs."""

from dataclasses import dataclass, field

import numpy as np

HOUR_S = 3600.0
SIGMAS = 3.0  # neighbouring measurements resemble each other, so the error is too small: this is lenient on purpose

BLURRED = 3.0


@dataclass
class Series:
    """Measured values and when, in seconds since the start."""

    seconds: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, seconds: float, value: float) -> None:
        """One more."""
        self.seconds.append(seconds)
        self.values.append(value)

    def after(self, share: float) -> "Series":
        """Without the first `share` of its time."""
        if not self.seconds:
            return Series()
        since = self.seconds[0] + share * (self.seconds[-1] - self.seconds[0])
        kept = [(s, v) for s, v in zip(self.seconds, self.values, strict=True) if s >= since]
        return Series([s for s, _ in kept], [v for _, v in kept])


def fit(series: Series) -> tuple[float, float]:
    """(slope per hour, its standard error) of the least-squares line; at least three values."""
    t, y = np.array(series.seconds) / HOUR_S, np.array(series.values)
    t = t - t.mean()
    slope = float(t @ (y - y.mean()) / (t @ t))
    left = y - y.mean() - slope * t
    return slope, float(np.sqrt(left @ left / (len(y) - 2) / (t @ t)))


def is_blurred(error: float, allowed: float) -> bool:
    """Whether even a slope of several times what is allowed could hide in the error: then nothing is known."""
    return SIGMAS * error > BLURRED * allowed


def grows(slope: float, error: float, allowed: float) -> bool:
    """Whether even the low end of the slope is above what is allowed."""
    return slope - SIGMAS * error > allowed
