"""What the mini-batches of a step add up to, behind its metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Totals:
    """Of one step; of lists there is an item per mini-batch."""

    losses: list[float] = field(default_factory=list)
    kls: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)  # not finite where the update was left out
    lr: float = 0.0
    ratio: float = 0.0
    dead: float = 0.0
    tokens: int = 0
    padded: int = 0
    inputs: int = 0

    @property
    def left_out(self) -> int:
        """Updates whose gradient was not finite."""
        return sum(not math.isfinite(norm) for norm in self.norms)

    def warning(self, step: int, most: int) -> str | None:
        """What to tell of updates that were left out; None where none was."""
        if not self.left_out:
            return None
        return (
            f"step {step}: {self.left_out} of {len(self.norms)} updates had a gradient that is not finite, and moved "
            f"nothing; the run ends after more than {most} of them in a row (learner.max_bad_gradients)."
        )


def added(parts: Sequence[Totals]) -> Totals:
    """The totals of all ranks."""
    first = parts[0]
    sums: dict[str, Any] = {
        name: [sum(values) for values in zip(*(getattr(p, name) for p in parts), strict=True)]
        for name in ("losses", "kls")
    }
    sums |= {name: sum(getattr(p, name) for p in parts) for name in ("ratio", "dead", "tokens", "padded", "inputs")}
    return Totals(norms=first.norms, lr=first.lr, **sums)
