"""The learner's life: announce, take up what was left, then scan and train as the `work` stream says.

    Scan         -> ScanResult, with the entry's acknowledgement in one transaction
    Batch        -> train, publish; weights notice, l_ref and Trained in one transaction
                    acknowledged at the CHECKPOINT that contains it, so that after a crash it is given again
    Sync         -> what replay has not heard of is told again, and Hello
    Finish       -> final checkpoint, leave

A step is trained once per lineage.
"""

import logging

from services.learner import assemble, metrics
from services.learner.drift_noise import Noise
from services.learner.engine_gap import OnceEach
from services.learner.executor import Alone, Executor
from services.learner.model.policy import device_of
from services.learner.ranks.leader import WithRanks
from services.learner.ranks.members import ALONE, Ranks
from services.learner.stop import Stop, Stopped
from services.learner.talk import lineage
from services.learner.talk.beside import Beside
from services.learner.talk.idle import waiting_text
from services.learner.talk.outbox import Outbox
from services.learner.talk.sent_steps import SentSteps
from services.learner.weights.delivery import Delivery
from services.learner.weights.publisher import Publisher
from services.learner.weights.save_time import SaveTime
from services.learner.weights.saving import Saving
from shared import streams
from shared.config import Config
from shared.messages import Batch, Checkpointed, Hello, Malformed, Scan, ScanResult, Sync, Trained, Work, decode
from shared.redis_client import connect
from shared.streams import LEARNER, Entry, Keys, SyncInbox
from shared.versions import Version
from shared.waiting import FIRST_S, START_S, LongWait, Usual

log = logging.getLogger("headrace")

CONSUMER = "learner"  # fixed: a new process finds what the old one had not acknowledged
PENDING_PAGE = 64


class Loop:
    """One learner process; `run` returns after Finish and raises Stopped on a signal."""

    def __init__(self, config: Config, stop: Stop, ranks: Ranks = ALONE) -> None:
        self.config, self.stop = config, stop
        made = assemble.assemble(config, stop, ranks)
        self.trainer, self.step = made.trainer, made.step
        self.keys = Keys(config.run.name)
        self.client = connect(config.redis.url)
        self.outbox = Outbox(self.client, self.keys, stop)
        self.inbox = SyncInbox(self.client, self.keys.work, LEARNER, CONSUMER)
        self.reader = assemble.reader(config, self.client, self.trainer)
        self.lineage = self.outbox.patiently(
            "open a lineage", lambda: lineage.open_lineage(self.client, self.keys, made.lineage)
        )
        self.outbox.lineage = self.lineage
        acknowledged = self.outbox.patiently(
            "read how far the run is saved", lambda: lineage.saved_step(self.client, self.keys)
        )
        self._lost = (self.step, acknowledged) if acknowledged > self.step else None
        self._gone = acknowledged  # batches below it are not to be had any more
        self.step = max(self.step, acknowledged)
        self._cursor = made.cursor if self.step == made.step else None
        self._sent, self._behind = SentSteps(), False
        self._noise, self._told = Noise(), OnceEach()
        publisher = Publisher(config, self.trainer.model, made.companions)
        own = Alone(config, self.trainer, self.reader, self.outbox, publisher)
        self._executor: Executor = own if ranks.count == 1 else WithRanks(own)
        save_time = SaveTime(self.trainer.optimiser.checkpoint_bytes)
        self._delivery = Delivery(
            config=config,
            stop=stop,
            outbox=self.outbox,
            executor=self._executor,
            save_time=save_time,
            publisher=publisher,
        )
        self._saving = Saving(
            config=config,
            stop=stop,
            outbox=self.outbox,
            executor=self._executor,
            save_time=save_time,
            clock=self.trainer.clock,
            step=made.step if made.lineage >= 0 else -1,
        )
        self._first_step = self.step

    @property
    def version(self) -> Version:
        """Of the weights as they stand."""
        return Version(self.lineage, self.step)

    def run(self) -> None:
        """Announce, then work until Finish; a signal finds the steps saved that are trained, where it can."""
        try:
            self._work()
        except Stopped:
            self._saving.save_if_there_is_time(self.version, self._cursor)
            raise
        self._executor.leave()

    def _work(self) -> None:
        self._announce()
        if self._take_up():
            return
        wait, usual = LongWait(), Usual(FIRST_S)
        beside = Beside(self.client, self.config.run.name)
        while True:
            for text in self.outbox.patiently("look for replay", beside.look):
                log.warning("%s", text)
                self.outbox.warn(text)
            with self.trainer.clock("wait"):
                entries = self.outbox.patiently("read work", lambda: self.inbox.read(1))
            self.stop.check()
            if entries:
                usual.took(self.step, wait.seconds)
            for entry in entries:
                if self.handle(entry):
                    return
            if entries:
                wait = LongWait()
            elif wait.due():
                if self._take_up():  # what a learner that was replaced has read in its last moment
                    return
                self._tell_of_waiting(wait.seconds, usual.limit_s)

    def _tell_of_waiting(self, seconds: float, usual_s: float) -> None:
        def ask() -> tuple[str, bool]:
            return waiting_text(self.client, self.keys, self.step, seconds, usual_s)

        text, is_warning = self.outbox.patiently("look for groups", ask)
        starting = self.step == self._first_step and seconds < START_S
        log.info("%s", text)
        if is_warning and not starting:
            self.outbox.warn(text)
        self._delivery.mend()

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
        self._delivery.publish(self.version)
        with self.outbox.transaction("announce the first version") as tx:
            tx.notice(self._delivery.notice)
            tx.result(self._hello())
            if self._saving.step >= 0:  # the crash may have come between the checkpoint and the word of it
                tx.result(Checkpointed(version=self.version, step=self._saving.step))
                tx.pipe.set(streams.saved_key(self.keys), self.step)
                tx.event("resumed", step=self.step, lineage=self.lineage)
            if self._lost:
                tx.event("warning", **lineage.lost_steps(*self._lost))
        metrics.announce(self.version)
        metrics.announce_limit(self.config)
        log.info("learner at version %s on %s", self.version, device_of(self.trainer.model))

    def _take_up(self) -> bool:
        """What an earlier process had read and not acknowledged, in order; True after Finish."""
        after = b"0"
        while entries := self._left_after(after):
            for entry in entries:
                if self.handle(entry):
                    return True
            after = entries[-1].id
        return False

    def _left_after(self, after: bytes) -> list[Entry]:
        def look() -> list[Entry]:
            self.inbox.create()  # a server may have been emptied at any time
            return self.inbox.own_pending(PENDING_PAGE, after)

        return self.outbox.patiently("read what was left", look)

    def _scan(self, entry: Entry, scan: Scan) -> None:
        before = self.trainer.clock.seconds("scan")
        records = []
        if scan.step == self.step:
            with self.trainer.clock("scan"):
                records = self._executor.scan(scan)
            self._noise.take(records)
        result = ScanResult(
            scan=scan.scan,
            step=scan.step,
            version=self.version,
            records=records,
            seconds=self.trainer.clock.seconds("scan") - before,
        )
        with self.outbox.transaction("send a scan's records") as tx:
            tx.result(result)
            tx.ack(entry.id)

    def _batch(self, entry: Entry, batch: Batch) -> None:
        if batch.step < self._saving.step:
            self.outbox.patiently("acknowledge a saved batch", lambda: self.inbox.ack(entry.id))
        elif batch.step < self.step:
            self._saving.keep_open(entry.id, batch.step)
        elif batch.step > self.step:
            self._ask_for_what_is_missing(entry, batch)
        else:
            self._train(batch)
            self._saving.keep_open(entry.id, batch.step)
            if self._saving.is_due(self.step):
                self._saving.save(self.version, self._cursor)

    def _ask_for_what_is_missing(self, entry: Entry, batch: Batch) -> None:
        """Batches before this one did not come: replay says which it still has (Sync), and sends those again."""
        with self.outbox.transaction("ask for missing batches") as tx:
            tx.ack(entry.id)
            if not self._behind:
                log.warning("a batch for step %d came, and the learner is at step %d", batch.step, self.step)
                tx.result(self._hello(again=True))
        self._behind = True

    def _answer(self, entry: Entry, sync: Sync) -> None:
        """Say where the learner is, and again what replay has lost; leave out steps that nobody can give any more."""
        first = min((step for step in (sync.step, *sync.batches) if step >= self.step), default=self.step)
        skipped = (self.step, first) if first > self.step else None
        if skipped:
            self.step, self._cursor = first, None
            if not self._saving.open:  # else those are trained again when this life ends before it has saved them
                self._gone = max(self._gone, first)
            self._delivery.publish(self.version)
        self._delivery.send_again_if_gone()
        lacking = self.outbox.patiently("look for payloads", lambda: self._sent.lacking(self.client, self.keys, sync))
        announced = self._delivery.is_announced()
        with self.outbox.transaction("say where the learner is") as tx:
            for trained, references in lacking:
                log.warning("step %d is told again: replay has lost the word of it", trained.step)
                tx.trained(trained, references)
            if not announced:
                tx.notice(self._delivery.notice)
            lineage.remember(tx.pipe, self.keys, self.lineage, max(self._saving.step, self._gone))
            tx.result(self._hello())
            if skipped:
                tx.event("warning", **lineage.lost_steps(*skipped))
            tx.ack(entry.id)
        self._behind = False
        metrics.announce(self.version)

    def _train(self, batch: Batch) -> None:
        before = self.version
        done = self._executor.learn(batch)
        replay, fresh = done.replay, done.fresh
        self.step += 1
        with self.trainer.clock("publish"):
            self._delivery.publish(self.version, trained_on=[*replay.groups, *fresh.groups])

        numbers = metrics.step_metrics(done, before, self.config) | self._noise.metrics()
        read_bytes, reads, dead_letters = self.reader.lap()
        numbers |= {"payload_bytes_read": float(read_bytes), "payload_reads": float(reads), **self.trainer.clock.lap()}
        trained = Trained(
            step=batch.step,
            version=self.version,
            records=done.records,
            rejected=[*replay.refused, *fresh.refused],
            metrics=numbers,
        )
        kept = fresh.groups if self.config.keeps_references else []
        references = {group.id: self.reader.reference_bytes(group) for group in kept}
        self._cursor = batch.cursor
        with self.outbox.transaction("send a trained step") as tx:
            tx.notice(self._delivery.notice)
            tx.trained(trained, references)
            for text in metrics.warnings(self.config, batch.step, numbers, done.totals, self._told):
                log.warning(text)
                tx.event("warning", text=text)
        self._sent.keep(trained, references)
        with self.trainer.clock("publish"):
            self._delivery.delete_unused()
        metrics.export(numbers, self.version, dead_letters)

    def _finish(self, entry: Entry) -> bool:
        if self.step < self.config.run.steps:  # left over from before the run was given more steps
            self.outbox.patiently("acknowledge an old end of the run", lambda: self.inbox.ack(entry.id))
            return False
        if self._saving.step != self.step:
            self._saving.save(self.version, self._cursor)
        with self.outbox.transaction("say that the run is saved") as tx:
            tx.result(Checkpointed(version=self.version, step=self.step))
            tx.ack(entry.id)
        log.info("finished at step %d", self.step)
        return True

    def _hello(self, *, again: bool = False) -> Hello:
        return Hello(version=self.version, cursor=self._cursor, again=again)

    def _refuse(self, entry: Entry, reason: str) -> None:
        log.warning("refused an entry of the work stream: %s", reason)
        self.reader.dead_letters += 1
        with self.outbox.transaction("refuse an entry") as tx:
            streams.bury(tx.pipe, self.keys, "learner:work", reason, entry.data)
            tx.ack(entry.id)
            tx.event("warning", text=reason)
