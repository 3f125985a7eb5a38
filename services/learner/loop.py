"""The learner's life: announce, take up what was left, then scan and train as the `work` stream says.

    Scan         -> ScanResult, with the entry's acknowledgement in one transaction
    Batch        -> train, publish; weights notice, l_ref and Trained in one transaction
                    acknowledged at the CHECKPOINT that contains it, so that after a crash it is given again
    Sync         -> what replay has not heard of is told again, and Hello
    Finish       -> final checkpoint, leave

A step is trained once per lineage. A transaction whose reply was lost is sent again, so a reader may see an entry twice
and goes by its step and version.
"""

import logging
from collections.abc import Callable
from typing import Any

from services.learner import assemble, checkpoint, lineage, metrics, publish
from services.learner import step as steps
from services.learner.idle import waiting_text
from services.learner.parts import use_parts
from services.learner.patience import patiently
from services.learner.policy import context_of, vocabulary_of
from services.learner.stop import Stop
from services.learner.store import Fetched, Store
from services.learner.told import Told, add_trained
from shared import events, streams
from shared.config import Config
from shared.messages import (
    Batch,
    Checkpointed,
    Hello,
    Malformed,
    Message,
    Record,
    Scan,
    ScanResult,
    Sync,
    Trained,
    WeightsNotice,
    Work,
    decode,
    encode,
)
from shared.redis_client import connect, is_short_of_memory
from shared.streams import FIELD, LEARNER, Entry, Keys, SyncInbox
from shared.versions import Version
from shared.waiting import LongWait

log = logging.getLogger("headrace")

CONSUMER = "learner"  # fixed: a new process finds what the old one had not acknowledged
PENDING_PAGE = 64
GAP_OF_TAU = 0.1  # an engine gap above this share of tau eats into the gate


class Loop:
    """One learner process; `run` returns after Finish and raises Stopped on a signal."""

    def __init__(self, config: Config, stop: Stop) -> None:
        self.config, self.stop = config, stop
        made = assemble.assemble(config, stop)
        self.trainer, self._companions, self.step = made.trainer, made.companions, made.step
        self.keys = Keys(config.run.name)
        self.client = connect(config.redis.url)
        self.inbox = SyncInbox(self.client, self.keys.work, LEARNER, CONSUMER)
        model = self.trainer.model
        self.store = Store(
            self.client,
            self.keys,
            config.run.name,
            config.learner.cache_bytes,
            vocabulary=vocabulary_of(model),
            context=context_of(model),
        )
        self.lineage = self._patiently(
            "open a lineage", lambda: lineage.open_lineage(self.client, self.keys, made.lineage)
        )
        acknowledged = self._patiently(
            "read how far the run is saved", lambda: lineage.saved_step(self.client, self.keys)
        )
        self._lost = (self.step, acknowledged) if acknowledged > self.step else None
        self.step = max(self.step, acknowledged)
        self._cursor = made.cursor if self.step == made.step else None
        self._told, self._behind = Told(), False
        self._open: list[tuple[bytes, int]] = []  # (entry, step) of batches that no checkpoint holds yet
        self._saved_step = made.step if made.lineage >= 0 else -1
        self._canary = publish.sampled_sequences(model, config.weights.canary_sequences, config.weights.canary_tokens)
        self._dead_letters_seen = 0

    @property
    def version(self) -> Version:
        """Of the weights as they stand."""
        return Version(self.lineage, self.step)

    def run(self) -> None:
        """Announce, then work until Finish."""
        self._announce()
        if self._take_up():
            return
        wait = LongWait()
        while True:
            with self.trainer.clock("wait"):
                entries = self._patiently("read work", lambda: self.inbox.read(1))
            self.stop.check()
            for entry in entries:
                if self.handle(entry):
                    return
            if entries:
                wait = LongWait()
            elif wait.due():
                self._tell_of_waiting(wait.seconds)

    def _tell_of_waiting(self, seconds: float) -> None:
        def ask() -> tuple[str, bool]:
            return waiting_text(self.client, self.keys, self.step, seconds)

        text, groups_are_coming = self._patiently("look for groups", ask)
        log.info("%s", text)
        if not groups_are_coming:
            self._patiently(
                "warn", lambda: events.emit(self.client, self.keys, "warning", service="learner", text=text)
            )

    def handle(self, entry: Entry) -> bool:
        """Do what one entry says; True after Finish."""
        try:
            work = decode(entry.data, Work)
        except Malformed as error:
            self._refuse(entry, str(error))
            return False
        if isinstance(work, Scan):
            self._scan(entry, work)
        elif isinstance(work, Batch):
            self._batch(entry, work)
        elif isinstance(work, Sync):
            self._answer(entry, work)
        else:
            return self._finish(entry)
        return False

    def _announce(self) -> None:
        publish.clear_unfinished(self.config.weights_dir)
        self._notice = self._publish()
        with self.client.pipeline(transaction=True) as pipe:
            self._add_notice(pipe, self._notice)
            self._add(pipe, self._hello())
            if self._saved_step >= 0:  # the crash may have come between the checkpoint and the word of it
                self._add(pipe, Checkpointed(version=self.version, step=self._saved_step))
                events.emit(pipe, self.keys, "resumed", service="learner", step=self.step, lineage=self.lineage)
            if self._lost:
                events.emit(pipe, self.keys, "warning", service="learner", text=lineage.lost_steps(*self._lost))
            self._send("announce the first version", pipe)
        metrics.announce(self.version)
        log.info("learner at version %s on %s", self.version, next(self.trainer.model.parameters()).device)

    def _take_up(self) -> bool:
        """What an earlier process had read and not acknowledged, in order; True after Finish."""
        self._patiently("create the work stream", self.inbox.create)
        after = b"0"
        while entries := self._left_after(after):
            for entry in entries:
                if self.handle(entry):
                    return True
            after = entries[-1].id
        return False

    def _left_after(self, after: bytes) -> list[Entry]:
        return self._patiently("read what was left", lambda: self.inbox.own_pending(PENDING_PAGE, after))

    def _scan(self, entry: Entry, scan: Scan) -> None:
        before = self.trainer.clock.seconds("scan")
        records = []
        if scan.step == self.step:
            with self.trainer.clock("scan"):
                records = self._scanned(scan)
        result = ScanResult(
            scan=scan.scan,
            step=scan.step,
            version=self.version,
            records=records,
            seconds=self.trainer.clock.seconds("scan") - before,
        )
        with self.client.pipeline(transaction=True) as pipe:
            self._add(pipe, result)
            streams.ack(pipe, self.keys.work, LEARNER, entry.id)
            self._send("send a scan's records", pipe)

    def _scanned(self, scan: Scan) -> list[Record]:
        groups = self._fetch(scan.ids, reference=self._needs_reference).groups
        return steps.scan(self.trainer, groups, scan.per_rollout)

    def _batch(self, entry: Entry, batch: Batch) -> None:
        if batch.step < self._saved_step:
            self._patiently("acknowledge a saved batch", lambda: self.inbox.ack(entry.id))
        elif batch.step < self.step:
            self._open.append((entry.id, batch.step))
        elif batch.step > self.step:
            self._ask_for_what_is_missing(entry, batch)
        else:
            self._train(batch)
            self._open.append((entry.id, batch.step))
            due = self.step % self.config.learner.checkpoint_every == 0 or self.step == self.config.run.steps
            if due or self._memory_is_short():
                self._checkpoint()

    def _ask_for_what_is_missing(self, entry: Entry, batch: Batch) -> None:
        """Batches before this one did not come: replay says which it still has (Sync), and sends those again."""
        with self.client.pipeline(transaction=True) as pipe:
            streams.ack(pipe, self.keys.work, LEARNER, entry.id)
            if not self._behind:
                log.warning("a batch for step %d came, and the learner is at step %d", batch.step, self.step)
                self._add(pipe, self._hello(again=True))
            self._send("ask for missing batches", pipe)
        self._behind = True

    def _answer(self, entry: Entry, sync: Sync) -> None:
        """Say where the learner is, and again what replay has lost; leave out steps that nobody can give any more."""
        first = min([sync.step, *sync.batches])
        skipped = (self.step, first) if first > self.step else None
        if skipped:
            self.step, self._cursor = first, None
            self._notice = self._publish()
        lacking = self._told.lacking(sync)
        references = self._patiently(
            "look for payloads", lambda: self._told.references(self.client, self.keys, lacking)
        )
        newest: Any = self._patiently(
            "read the newest notice", lambda: self.client.xrevrange(self.keys.weights, count=1)
        )
        with self.client.pipeline(transaction=True) as pipe:
            for trained in lacking:
                log.info("step %d is told again: replay did not know of it when it asked", trained.step)
                add_trained(pipe, self.keys, trained, references)
            if not newest or newest[0][1][FIELD] != encode(self._notice):
                self._add_notice(pipe, self._notice)
            lineage.remember(pipe, self.keys, self.lineage, max(self._saved_step, 0))
            self._add(pipe, self._hello())
            if skipped:
                events.emit(pipe, self.keys, "warning", service="learner", text=lineage.lost_steps(*skipped))
            streams.ack(pipe, self.keys.work, LEARNER, entry.id)
            self._send("say where the learner is", pipe)
        self._behind = False
        metrics.announce(self.version)

    def _train(self, batch: Batch) -> None:
        before = self.version
        with self.trainer.clock("fetch"):
            replay = use_parts(self._fetch(batch.replay, reference=self._needs_reference), batch.parts)
            fresh = use_parts(self._fetch(batch.fresh, reference=False), batch.parts)
        records, totals = steps.train_step(self.trainer, batch.step, replay.groups, fresh.groups)
        self.step += 1
        with self.trainer.clock("publish"):
            groups = [*replay.groups, *fresh.groups]
            w = self.config.weights
            self._canary = publish.stored_sequences(groups, w.canary_sequences, w.canary_tokens) or self._canary
            self._notice = self._publish()

        numbers = metrics.step_metrics(totals, records, len(replay.groups), fresh.groups, before)
        read_bytes, reads = self.store.lap()
        numbers |= {"payload_bytes_read": float(read_bytes), "payload_reads": float(reads), **self.trainer.clock.lap()}
        trained = Trained(
            step=batch.step,
            version=self.version,
            records=records,
            rejected=[*replay.refused, *fresh.refused],
            metrics=numbers,
        )
        kept = fresh.groups if self._keeps_references else []
        references = {group.id: self.store.reference_bytes(group) for group in kept}
        self._cursor = batch.cursor
        with self.client.pipeline(transaction=True) as pipe:
            self._add_notice(pipe, self._notice)
            add_trained(pipe, self.keys, trained, references)
            self._warn_of_gap(pipe, numbers)
            self._send("send a trained step", pipe)
        self._told.keep(trained, references)
        with self.trainer.clock("publish"):
            in_use = self._patiently("read heartbeats", lambda: publish.versions_in_use(self.client, self.keys))
            publish.delete_unused(self.config.weights_dir, in_use)
        metrics.export(numbers, self.version, self.store.dead_letters - self._dead_letters_seen)
        self._dead_letters_seen = self.store.dead_letters

    def _finish(self, entry: Entry) -> bool:
        if self.step < self.config.run.steps:  # left over from before the run was given more steps
            self._patiently("acknowledge an old end of the run", lambda: self.inbox.ack(entry.id))
            return False
        if self._saved_step != self.step:
            self._checkpoint()
        with self.client.pipeline(transaction=True) as pipe:
            self._add(pipe, Checkpointed(version=self.version, step=self.step))
            streams.ack(pipe, self.keys.work, LEARNER, entry.id)
            self._send("say that the run is saved", pipe)
        log.info("finished at step %d", self.step)
        return True

    def _memory_is_short(self) -> bool:
        """Payloads are freed by checkpoints alone, and actors wait for room."""
        short = self._patiently("look at its memory", lambda: is_short_of_memory(self.client))
        if short:
            log.warning("Redis is short of memory: a checkpoint after step %d, so that payloads can go", self.step)
        return short

    def _checkpoint(self) -> None:
        c = self.config
        with self.trainer.clock("checkpoint"):
            checkpoint.save(
                c.checkpoints_dir,
                self.step,
                lambda folder: publish.write_model(self.trainer.model, self._companions, folder),
                assemble.trainer_state(self.trainer, self.step, self.lineage, self._cursor),
            )
            self._saved_step = self.step
            with self.client.pipeline(transaction=True) as pipe:
                streams.ack(pipe, self.keys.work, LEARNER, *(id for id, _ in self._open))
                pipe.set(streams.saved_key(self.keys), self.step)
                self._add(pipe, Checkpointed(version=self.version, step=self.step))
                self._send("acknowledge the saved batches", pipe)
            self._open.clear()
            checkpoint.prune(c.checkpoints_dir, c.learner.keep_last, c.learner.keep_every)

    def _hello(self, *, again: bool = False) -> Hello:
        return Hello(version=self.version, cursor=self._cursor, again=again)

    def _publish(self) -> WeightsNotice:
        canary = publish.canary_of(self.trainer.model, self._canary)
        return publish.publish(self.config.weights_dir, self.version, self.trainer.model, self._companions, canary)

    def _warn_of_gap(self, pipe: Any, numbers: dict[str, float]) -> None:
        r = self.config.replay
        limit = GAP_OF_TAU * (r.tau if r.drift == "l2" else r.tau**2)  # the gap is a mean of squares
        metrics.announce_limit(limit)
        gap = numbers.get("engine_gap", 0.0)
        if r.policy != "none" and gap >= limit > 0:
            text = (
                f"the engine gap is {gap:.2e}, and replay.tau{'' if r.drift == 'l2' else '^2'} / 10 is {limit:.2e}: "
                "the difference between engine and trainer alone would eat into the gate."
            )
            log.warning(text)
            events.emit(pipe, self.keys, "warning", service="learner", text=text)

    def _refuse(self, entry: Entry, reason: str) -> None:
        log.warning("refused an entry of the work stream: %s", reason)
        self.store.dead_letters += 1
        with self.client.pipeline(transaction=True) as pipe:
            streams.bury(pipe, self.keys, "learner:work", reason, entry.data)
            streams.ack(pipe, self.keys.work, LEARNER, entry.id)
            events.emit(pipe, self.keys, "warning", service="learner", text=reason)
            self._send("refuse an entry", pipe)

    @property
    def _needs_reference(self) -> bool:
        return self.config.learner.reference == "trainer"

    @property
    def _keeps_references(self) -> bool:
        return self._needs_reference and self.config.replay.policy != "none"

    def _fetch(self, ids: list[str], *, reference: bool) -> Fetched:
        return self._patiently("fetch groups", lambda: self.store.fetch(ids, reference=reference))

    def _add(self, pipe: Any, message: Message) -> None:
        streams.add(pipe, self.keys.results, encode(message))

    def _add_notice(self, pipe: Any, notice: WeightsNotice) -> None:
        streams.add(pipe, self.keys.weights, encode(notice), keep=publish.NOTICES_KEPT)

    def _send(self, what: str, pipe: Any) -> None:
        commands = list(pipe.command_stack)

        def execute() -> None:
            pipe.command_stack = list(commands)  # a failed execute empties it
            pipe.execute()

        self._patiently(what, execute)

    def _patiently(self, what: str, call: Callable[[], Any]) -> Any:
        return patiently(self.stop, what, call)
