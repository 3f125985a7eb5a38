"""A delay that a setting names, in seconds, so that a small machine shows the cost structure of a slow environment.

    2.0                     always the same
    uniform(1, 3)           between the two
    lognormal(1.5, 0.6)     median and sigma of the logarithm: most calls near the median, a few far above it

A draw is a function of its seed alone: a run that is repeated, or compared with another, meets the same delays.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

from shared.errors import UserError
from shared.seeds import derive

_APART = 1  # from what else is drawn with the seed of a turn: its tokens
_CALL = re.compile(r"(\w+)\(([^,()]+),([^,()]+)\)")


@dataclass(frozen=True)
class Latency:
    """A distribution of seconds. `a`, `b`: the bounds of `uniform`, or the median and sigma of `lognormal`."""

    kind: str  # constant | uniform | lognormal
    a: float
    b: float

    def draw(self, seed: int) -> float:
        """The delay of one call, in seconds."""
        if self.kind == "constant":
            return self.a
        random = np.random.default_rng(derive(seed, _APART))
        if self.kind == "uniform":
            return float(random.uniform(self.a, self.b))
        return float(self.a * math.exp(self.b * random.standard_normal()))

    @property
    def mean(self) -> float:
        """Expected seconds of one call."""
        if self.kind == "uniform":
            return (self.a + self.b) / 2
        return self.a * math.exp(self.b**2 / 2)  # `constant` has b = 0


def spoken(text: str) -> str:
    """What a report says of the setting: a figure of seconds means little without it."""
    if parse_latency(text) is None:
        return "no latency was added to retrieval"
    return f"a latency of {text} s was added to each retrieval call"


def parse_latency(text: str) -> Latency | None:
    """Read the setting; None where it is empty or zero. Raises UserError."""
    text = text.strip()
    if not text:
        return None
    latency = _parsed(text)
    if latency is None:
        raise UserError(
            f"env.latency = '{text}' is no distribution of seconds: write '2.0', 'uniform(1, 3)' with 0 <= 1 <= 3, "
            "or 'lognormal(1.5, 0.6)' (median, sigma)."
        )
    return latency if latency.mean > 0 else None


def _parsed(text: str) -> Latency | None:
    try:
        if call := _CALL.fullmatch(text):
            latency = Latency(call[1], float(call[2]), float(call[3]))
        else:
            latency = Latency("constant", float(text), 0.0)
    except ValueError:
        return None
    possible = {
        "constant": latency.a >= 0,
        "uniform": 0 <= latency.a <= latency.b,
        "lognormal": latency.a > 0 and latency.b >= 0,
    }
    finite = math.isfinite(latency.a) and math.isfinite(latency.b)
    return latency if finite and possible.get(latency.kind, False) else None
