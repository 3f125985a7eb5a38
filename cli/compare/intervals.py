"""Means over seeds and paired differences, with Student's t: a handful of seeds is all there ever is.

A difference is paired by seed: both runs of a pair saw the same questions in the same order, so what is hard about a
seed cancels. The interval is mean +- t(n - 1) * s / sqrt(n) of the n paired differences; for a ratio, of the paired
differences of logarithms. With one seed there is no interval, and nothing can be called a difference.

The spread s is itself guessed from the n values. Below ENOUGH of them that guess can be far too small by chance: it is
under a tenth of the truth for one pair of seeds in 13 and for one triple in 100, and the interval is then as much too
narrow. It still covers the truth in LEVEL of all studies, the others being far too wide; a single one may look sure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95
ENOUGH = 4  # values


@dataclass(frozen=True)
class Interval:
    """A mean of n values; low and high are None where n < 2."""

    value: float
    low: float | None
    high: float | None
    n: int

    def excludes(self, point: float) -> bool:
        """Whether `point` (no difference) lies outside, so that something can be said at all."""
        return self.low is not None and self.high is not None and not self.low <= point <= self.high


def mean_of(values: Sequence[float]) -> Interval | None:
    """The mean with its interval; None of no values."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile(n - 1, LEVEL) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> Interval | None:
    """a - b over the seeds that both have."""
    return mean_of([a[seed] - b[seed] for seed in a if seed in b])


def ratio(a: Mapping[int, float], b: Mapping[int, float]) -> Interval | None:
    """a / b over the seeds that both have, geometric; None where a value is not positive."""
    seeds = [seed for seed in a if seed in b]
    if any(a[seed] <= 0 or b[seed] <= 0 for seed in seeds):
        return None
    logs = mean_of([math.log(a[seed] / b[seed]) for seed in seeds])
    if logs is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Interval(math.exp(logs.value), low, high, logs.n)


def verdict(interval: Interval | None, neutral: float, more: str = "higher", less: str = "lower") -> str:
    """What may be said of a difference (neutral 0) or a ratio (neutral 1)."""
    if interval is None:
        return "not measured"
    if interval.n < 2:
        return "one seed: no interval"
    if not interval.excludes(neutral):
        return "inside the noise"
    return more if interval.value > neutral else less


def t_quantile(degrees: int, level: float) -> float:
    """The half-width t with P(|T| <= t) = level, for a whole number of degrees of freedom, by bisection."""
    low, high = 0.0, 1.0
    while t_inside(high, degrees) < level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def t_inside(t: float, degrees: int) -> float:
    """P(|T| <= t), by the finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cos2 = math.cos(angle) ** 2
    odd = degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    if degrees == 1:
        return 2 * angle / math.pi
    for k in range(2 if odd else 1, degrees - 2 + odd, 2):
        term *= cos2 * k / (k + 1)
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
