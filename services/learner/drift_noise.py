"""The floor of Drift: what two scorings of the same tokens under the same weights differ by, because they were cut
otherwise (docs/method.md, section 5). In bfloat16 it is not far below the gate; in float32 it is nothing.
"""

from collections.abc import Iterable

from services.learner.engine_gap import reached
from shared.config import Config
from shared.messages import Record

EVERY = 10  # steps; the first that can scan anything is step 1


def is_due(step: int) -> bool:
    """Whether the scans of this step score their first groups a second time."""
    return step % EVERY == 1


class Noise:
    """What the scans of a step said of it."""

    def __init__(self) -> None:
        self._squares: list[float] = []

    def take(self, records: Iterable[Record]) -> None:
        """Of one scan."""
        self._squares += [r.noise for r in records if r.noise is not None]

    def metrics(self) -> dict[str, float]:
        """`drift_noise`, the mean over the groups that were scored twice, where any was; then it is forgotten."""
        squares, self._squares = self._squares, []
        return {"drift_noise": sum(squares) / len(squares)} if squares else {}


def warning(config: Config, noise: float) -> str | None:
    """What to tell of noise near the gate."""
    if not (limit_reached := reached(config, noise)):
        return None
    return (
        f"the same tokens scored twice, cut otherwise, differ by a Drift of {noise:.2e}, and {limit_reached}: "
        "rounding alone eats into the gate. A wider replay.tau or model.dtype = 'float32' helps."
    )
