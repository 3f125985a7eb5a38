"""What is done with the model as the loop decides it: a step, a scan, a version, a checkpoint.

Alone      in this process           WithRanks (`ranks/leader.py`)      here and on the other ranks, by orders
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.learner import step as steps
from services.learner.drift_noise import is_due
from services.learner.groups.reader import Fetched, GroupReader
from services.learner.ranks.keeping import save_checkpoint
from services.learner.step import Trainer
from services.learner.talk.outbox import Outbox
from services.learner.totals import Totals
from services.learner.weights.publisher import Publisher
from shared.config import Config
from shared.messages import Batch, Cursor, Part, Record, Scan
from shared.versions import Version


@dataclass(frozen=True)
class Learned:
    """A step that was trained: what of its batch could be used, and one record per group, in order."""

    replay: Fetched
    fresh: Fetched
    records: list[Record]
    totals: Totals


class Executor(Protocol):
    """Writing may be asked for again where it failed for want of room."""

    @property
    def may_save(self) -> bool:
        """Whether a checkpoint may be written wherever the process was stopped: the weights are of a whole step."""
        ...

    def learn(self, batch: Batch) -> Learned:
        """Train one step."""
        ...

    def scan(self, scan: Scan) -> list[Record]:
        """Measure stored groups under the weights as they stand; those that are gone have no record."""
        ...

    def publish(self, version: Version) -> None:
        """Write the version's files."""
        ...

    def save(self, version: Version, cursor: Cursor | None) -> None:
        """Write the checkpoint of as many steps as the version has."""
        ...

    def leave(self) -> None:
        """The run is over."""
        ...


class Alone:
    """One process has the whole model."""

    def __init__(
        self, config: Config, trainer: Trainer, reader: GroupReader, outbox: Outbox, publisher: Publisher
    ) -> None:
        self.config, self.trainer, self.reader, self.outbox, self.publisher = config, trainer, reader, outbox, publisher
        self.reference = config.learner.reference == "trainer"  # of stored groups it is kept in Redis
        self._between_updates = False

    @property
    def may_save(self) -> bool:
        return not self._between_updates

    def learn(self, batch: Batch) -> Learned:
        with self.trainer.clock("fetch"):
            replay = self.fetch(batch.replay, reference=self.reference, parts=batch.parts)
            fresh = self.fetch(batch.fresh, reference=False, parts=batch.parts)
        self._between_updates = bool(self.config.learner.mini_batch)
        records, totals = steps.train_step(self.trainer, batch.step, replay.groups, fresh.groups)
        self._between_updates = False
        return Learned(replay, fresh, records, totals)

    def scan(self, scan: Scan) -> list[Record]:
        groups = self.fetch(scan.ids, reference=self.reference).groups
        return steps.scan(self.trainer, groups, scan.per_rollout, is_due(scan.step))

    def publish(self, version: Version) -> None:
        self.publisher.publish(version)

    def save(self, version: Version, cursor: Cursor | None) -> None:
        save_checkpoint(self.config.checkpoints_dir, self.trainer, self.publisher.companions, version, cursor)

    def leave(self) -> None:
        """Nobody waits."""

    def fetch(self, ids: list[str], *, reference: bool, parts: Mapping[str, Part] | None = None) -> Fetched:
        """As `GroupReader.fetch`, however long Redis is away."""
        return self.outbox.patiently("fetch groups", lambda: self.reader.fetch(ids, reference=reference, parts=parts))
