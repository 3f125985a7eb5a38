"""Which trained batches no checkpoint holds yet, and the writing of the checkpoint that does.

    write and rename -> acknowledge its batches, `saved` and Checkpointed, in one transaction -> prune

Until then the batches stay pending, so whoever resumes from the checkpoint before is given them again.
"""

import logging

from services.learner.clock import Clock
from services.learner.executor import Executor
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights import checkpoint
from services.learner.weights.room import until_written
from services.learner.weights.save_time import SaveTime, timed
from shared import streams
from shared.config import Config
from shared.messages import Checkpointed, Cursor
from shared.redis_client import is_short_of_memory
from shared.versions import Version

log = logging.getLogger("headrace")


class Saving:
    """`step`: of the newest checkpoint, -1 where there is none. `open`: (entry, step) of batches that wait for one.

    Waits for Redis and for room, and raises Stopped.
    """

    def __init__(
        self,
        config: Config,
        stop: Stop,
        outbox: Outbox,
        executor: Executor,
        save_time: SaveTime,
        clock: Clock,
        step: int,
    ) -> None:
        self._config, self._stop, self._outbox = config, stop, outbox
        self._executor, self._clock, self._save_time = executor, clock, save_time
        self.step = step
        self.open: list[tuple[bytes, int]] = []

    def keep_open(self, entry: bytes, step: int) -> None:
        """The batch of this entry is trained; to be told twice changes nothing."""
        if (entry, step) not in self.open:
            self.open.append((entry, step))

    def is_due(self, step: int) -> bool:
        """Whether `step` trained steps are to be saved: by the settings, or because Redis is short of memory."""
        if step % self._config.learner.checkpoint_every == 0 or step == self._config.run.steps:
            return True
        short = self._outbox.patiently("look at its memory", lambda: is_short_of_memory(self._outbox.client))
        if short:  # payloads are freed by checkpoints alone, and actors wait for room
            log.warning("Redis is short of memory: a checkpoint after step %d, so that payloads can go", step)
        return short

    def save(self, version: Version, cursor: Cursor | None) -> None:
        """Write the checkpoint of the weights as they stand, and say so."""
        c, step = self._config, version.number
        with self._clock("checkpoint"):
            write = timed(lambda: self._executor.save(version, cursor))
            self._save_time.saved(until_written(self._stop, c.checkpoints_dir, write, self._outbox.warn))
            self.step = step
            with self._outbox.transaction("acknowledge the saved batches") as tx:
                tx.ack(*(id for id, _ in self.open))
                tx.pipe.set(streams.saved_key(self._outbox.keys), step)
                tx.result(Checkpointed(version=version, step=step))
            self.open.clear()
            checkpoint.prune(c.checkpoints_dir, c.learner.keep_last, c.learner.keep_every, step)

    def save_if_there_is_time(self, version: Version, cursor: Cursor | None) -> None:
        """Where the weights are those of a whole step that replay was told of, newer than the newest checkpoint."""
        step = version.number
        told = bool(self.open) and self.open[-1][1] == step - 1
        if not (told and self._executor.may_save and self.step != step):
            return
        expected, left = self._save_time.expected_s, self._stop.left_s
        if expected > left:
            log.warning(
                "step %d is not saved: a checkpoint takes about %.0f s, and run.stop_s leaves %.0f",
                step,
                expected,
                left,
            )
            return
        self.save(version, cursor)
        log.info("saved at step %d", step)
