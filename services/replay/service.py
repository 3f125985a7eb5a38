"""The replay process: reads what actors and learner say, and answers with tasks, scans and batches.

    groups  --\
               >-- one worker: apply the entries, then advance the step --> tasks, work, events
    results --/

Crash-only: every wake-up is one transaction. Whatever goes wrong with Redis, the state is loaded again from it and
unacknowledged entries are delivered again; a selection under way is started over, in the same order.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

import redis.asyncio
from prometheus_client import REGISTRY, CollectorRegistry
from redis.exceptions import RedisError, ResponseError

from services.replay import again, damage, evaluation, refills, refused, resync, transitions
from services.replay.metrics import ReplayMetrics
from services.replay.next_step import NextStep
from services.replay.policies import get_policy
from services.replay.records import Composed
from services.replay.rules import mixed
from services.replay.state import State, Store, Superseded, Transaction
from services.replay.waits import waiting_for
from services.replay.watch import Watch
from shared import heartbeats, messages
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.errors import UserError
from shared.messages import Checkpointed, GroupHeader, Hello, Malformed, Record, ScanResult, Trained
from shared.outage import Outage
from shared.prompts import PromptSource
from shared.redis_client import SPOKEN, why_waited_for
from shared.service import first_error
from shared.streams import ACTORS, LEARNER, REPLAY, Entry, Inbox, Keys

log = logging.getLogger("headrace.replay")
READ_COUNT = 256
GATHER_S = 0.005  # groups that come within it are filed together: a transaction costs as much as ten more groups in it
RETRY_S = 0.5
RECLAIM_MS = 3000  # what a replay process that was replaced read in its last moment
RECLAIM_FOR_S = 12.0
WATCH_S = 5.0


class Replay:
    """One run's replay service. `state` is None until Redis has answered."""

    def __init__(
        self,
        config: Config,
        client: redis.asyncio.Redis,
        train: PromptSource,
        held_out: PromptSource | None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.config, self.client, self.train, self.held_out = config, client, train, held_out
        self.keys = Keys(config.run.name)
        self.store = Store(client, self.keys)
        self.policy = get_policy(config.replay.policy)
        again.check(config, self.policy)
        self.metrics = ReplayMetrics(registry)
        self.metrics.configured(config.replay.max_lag, config.run.steps)
        self.state: State | None = None
        self._watch = Watch(client, self.keys)
        self._life = 0
        self._heard = False  # where the learner is, since the state was loaded
        self._then: list[Callable[[], None]] = []  # once the transaction under way has taken effect
        self._outage = Outage(self.metrics.redis_wait, any_error=True)
        self._scans = 0
        self._step: NextStep | None = None  # that is being put together
        self.waiting_for, self.waiting_s = "Redis", 0.0
        self.last_selection: tuple[int, frozenset[str], frozenset[str]] = (-1, frozenset(), frozenset())
        self._last_trained = time.monotonic()

    async def run(self) -> None:
        """Serve until cancelled. Raises UserError when another process has taken the run over, or a step starves."""
        while True:
            try:
                self._life = await self.store.take_over()
                await self._serve()
            except* Superseded as error:
                raise UserError(str(error.exceptions[0])) from None
            except* RedisError as error:
                raise_if_cancelled()  # a reader that fails while being cancelled hides that in this group of errors
                first = first_error(error)
                assert isinstance(first, RedisError)
                await self._wait_for_redis(first)

    async def _wait_for_redis(self, error: Exception) -> None:
        self._outage.failed(error)
        why = why_waited_for(error)
        self.waiting_for = SPOKEN[why]
        self.metrics.reconnects.inc()
        if why != "away":
            with suppress(RedisError):
                await self.store.make_room()
        await asyncio.sleep(RETRY_S)

    def _after_outage(self) -> list[str]:
        """What is said once Redis takes writes again: while it did not, there was nowhere to say it."""
        if not self._outage.seconds:
            return []
        return [f"for {self._outage.seconds:.1f} s the run waited for {self.waiting_for}; its state was loaded again."]

    async def _serve(self) -> None:
        await self.store.check_epoch()
        consumer = f"replay-{self._life}"
        streams_read = (self.keys.groups, self.keys.results)
        inboxes = [Inbox(self.client, stream, REPLAY, consumer, RECLAIM_MS) for stream in streams_read]
        for inbox in inboxes:
            await inbox.take_over()
        await Inbox(self.client, self.keys.tasks, ACTORS, "").create()
        await Inbox(self.client, self.keys.work, LEARNER, "").create()
        self.state = state = await self.store.load(time.time())
        state.counters.finished &= state.counters.step >= self.config.run.steps  # resumed with more steps
        state.counters.refilled_in_step = 0  # whoever resumes with other prompts starts anew
        self._step = None
        self._heard = False
        arrived: asyncio.Queue[list[Entry]] = asyncio.Queue(maxsize=4)
        self._watch = watch = Watch(self.client, self.keys)
        async with asyncio.TaskGroup() as tasks:
            for inbox, gather_s in zip(inboxes, (GATHER_S, 0.0), strict=True):
                tasks.create_task(_forward(inbox, arrived, gather_s))
            tasks.create_task(self._look(state, watch, arrived))
            entries: list[Entry] = []
            asked = False
            while True:
                raise_if_cancelled()
                self._then.clear()
                async with self.store.transaction(state) as tx:
                    if not asked:
                        damage.mend(state, tx)
                        resync.ask(state, tx)
                        asked = True
                    filed = [self._apply(state, tx, entry) for entry in entries]
                    for task in watch.vanished(state):
                        transitions.task_vanished(self.config, state, tx, task)
                    for warning in [*self._after_outage(), *watch.warnings()]:
                        tx.event("warning", service="replay", text=warning)
                    self._advance(state, tx)
                for tell in self._then:
                    tell()
                if sentence := refills.starved(self.config, state) or refused.none_usable(self.config, state):
                    raise UserError(sentence)
                self._outage.over()
                here = self._step is not None and self._step.fresh_here
                watch.waits_for(waiting_for(self.config, state, self.held_out, self._heard, here), any(filed))
                self.waiting_for, self.waiting_s = watch.waiting()
                self.metrics.show(state)
                raise_if_cancelled()  # before a queue that nobody fills any more when a reader has failed
                entries = await arrived.get()

    async def _look(self, state: State, watch: Watch, arrived: asyncio.Queue[list[Entry]]) -> None:
        """At once and every WATCH_S seconds: what has become of the tasks, and how long has nothing happened?"""
        while True:
            await self.store.check_epoch()
            self.waiting_for, self.waiting_s = watch.waiting()
            await self.metrics.look(self.client, self.keys, self.waiting_s, watch.limit_s)
            if text := await self.metrics.round_trip.measure(self.client):
                watch.tell(text)
            await self._beat()
            something = await watch.look(state)
            self.metrics.others(watch.actors.alive, watch.actors.silent, watch.learner.silent_s)
            raise_if_cancelled()
            if something:
                await arrived.put([])  # wakes the worker
            await asyncio.sleep(WATCH_S)

    async def _beat(self) -> None:
        """For people who reach Redis alone."""
        _, replayed, scanned = self.last_selection
        beat = {"waiting_for": self.waiting_for, "waiting_s": self.waiting_s, "refused": sorted(scanned - replayed)}
        with suppress(ResponseError):  # a full server: the next transaction finds out
            await heartbeats.tell_of_replay(self.client, self.keys, beat)

    def _apply(self, state: State, tx: Transaction, entry: Entry) -> bool:
        """One entry's effect and its acknowledgement; False where it is refused."""
        try:
            if entry.stream == self.keys.groups:
                self._group(state, tx, messages.decode(entry.data, GroupHeader))
            else:
                self._result(state, tx, messages.decode(entry.data, messages.Result))
        except Malformed as error:
            log.warning("refused an entry of %s: %s", entry.stream, error)
            tx.bury(entry, str(error))
            return False
        tx.ack(entry)
        return True

    def _group(self, state: State, tx: Transaction, header: GroupHeader) -> None:
        stored = len(state.buffer)
        transitions.group_arrived(self.config, state, tx, self.policy, header)
        if len(state.buffer) < stored:  # other fingerprints: what was selected may be gone
            self._step = None
        self._then.append(lambda: self.metrics.group(header))

    def _result(self, state: State, tx: Transaction, result: messages.Result) -> None:
        match result:
            case Hello() if resync.overtaken(state, result):
                self._heard |= not result.again  # its answer all the same, behind a word that was sent after it
            case Hello():
                news = resync.learner_said_hello(self.config, state, tx, self.train, result)
                self._heard = not result.again
                if news:
                    self._last_trained = time.monotonic()
                    self._step = None
            case ScanResult():
                if self._step is not None:
                    self._step.take(tx, result)
            case Trained():
                now = time.monotonic()
                seconds = now - self._last_trained
                transitions.step_trained(self.config, state, tx, self.policy, len(self.train), result, seconds)
                self._last_trained = now
                self._then.append(lambda: self._watch.trained(result.step, seconds))
                self._step = None
            case Checkpointed():
                transitions.checkpoint_written(state, tx, result)

    def _advance(self, state: State, tx: Transaction) -> None:
        """Do what has become possible: tasks, the step's first scan, its batch, the end of the run."""
        c = state.counters
        if c.version is None or c.finished:
            return
        transitions.issue_tasks(self.config, state, tx, self.policy, self.train)
        transitions.issue_questions(self.config, state, tx, self.held_out, self._watch.actors.alive)
        if self._heard and c.version.number < c.step and c.version.number not in state.batches:
            resync.ask(state, tx)  # what the learner would train next is not to be had any more: it leaves that out
            self._heard = False
            return
        if c.step >= self.config.run.steps:
            if not evaluation.any_open(state):
                transitions.run_finished(state, tx)
            return
        # a learner that resumed trains what it has batches for first; the first evaluation comes before the first batch
        if c.version.number != c.step or c.step in state.batches or evaluation.round_open(state, 0):
            return
        if not self._heard:
            return
        if self._step is None:
            self._step = NextStep(self.config, self.policy, state, self._name_scan)
            self._step.ask(tx)
        if batch := self._step.compose(tx):
            scanned = self._step.scanned
            self._then.append(lambda: self._tell(batch, scanned))
            self._step = None

    def _tell(self, batch: Composed, scanned: dict[str, Record]) -> None:
        """A batch has been sent."""
        self.metrics.batch(batch, scanned.values())
        self._watch.batch(batch.stats, self.config.replay.capacity, self.policy.keeps is mixed, self.policy.gated)
        self.last_selection = batch.step, frozenset(batch.replay), frozenset(scanned)  # step, replayed, scanned

    def _name_scan(self) -> str:
        self._scans += 1
        return f"{self._life}-{self._scans}"


async def _forward(inbox: Inbox, queue: asyncio.Queue[list[Entry]], gather_s: float) -> None:
    """The first entry after a quiet time goes on at once, those of the next `gather_s` seconds together behind it."""
    until = time.monotonic() + RECLAIM_FOR_S
    while True:
        if inbox.reclaim_ms and time.monotonic() > until:
            inbox.reclaim_ms = 0  # all that is pending is this process's own by now
        entries = await inbox.read(READ_COUNT)
        raise_if_cancelled()  # before a queue that nobody may be emptying any more
        if entries:
            await queue.put(entries)
            if len(entries) < READ_COUNT:
                await asyncio.sleep(gather_s)
