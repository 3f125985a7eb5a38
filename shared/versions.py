"""A weights version: (lineage, number).

A learner that resumes from a checkpoint opens a new lineage, because the same number trained again need not be the same
bits. Order is by lineage first.
"""

from typing import NamedTuple


class Version(NamedTuple):
    """Weights after `number` steps of training, in the `lineage`-th life of the learner."""

    lineage: int
    number: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.number}"

    @property
    def directory(self) -> str:
        """The name of this version's folder under the weights folder; sorts as the versions do."""
        return f"v{self.lineage:04d}-{self.number:08d}"
