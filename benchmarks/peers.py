"""An actor and a learner that speak the protocol over a real Redis and leave open what they do in place of work."""

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import redis.asyncio

from shared import messages, streams
from shared.advantages import group_advantages
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.group_store import GroupStore
from shared.messages import (
    FINISHED,
    Batch,
    Checkpointed,
    Cursor,
    Finish,
    GroupHeader,
    Hello,
    Record,
    Scan,
    ScanResult,
    Sync,
    Task,
    Trained,
    WeightsNotice,
)
from shared.payload import Payload, encode_payload
from shared.redis_client import BLOCK_MS
from shared.streams import ACTORS, LEARNER, Inbox, Keys
from shared.versions import Version

PROMPT = np.arange(32, dtype=np.int32)


class Actor(ABC):
    """Keeps `slots` tasks under way."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        config: Config,
        name: str,
        slots: int,
        *,
        reclaim_ms: int = 0,
        block_ms: int = BLOCK_MS,
    ) -> None:
        self.client, self.config, self.keys, self.slots = client, config, Keys(config.run.name), slots
        self.store, self._block_ms = GroupStore(client, self.keys), block_ms
        self._inbox = Inbox(client, self.keys.tasks, ACTORS, name, reclaim_ms)

    async def run(self) -> None:
        """Until cancelled. Raises what `_answer` raises, in a group."""
        free = asyncio.Semaphore(self.slots)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await free.acquire()
                raise_if_cancelled()
                entries = await self._inbox.read(1, self._block_ms)
                if not entries:
                    free.release()
                for entry in entries:
                    tasks.create_task(self._answer(entry)).add_done_callback(lambda _: free.release())

    @abstractmethod
    async def _answer(self, entry: streams.Entry) -> None:
        """Store a group that ends the task."""

    async def newest_version(self) -> Version | None:
        """Of the weights that were announced; None on a server that has lost the word of it."""
        newest: Any = await self.client.xrevrange(self.keys.weights, count=1)
        return messages.decode(newest[0][1][streams.FIELD], WeightsNotice).version if newest else None


class Learner(ABC):
    """Takes up work as a learner does; what it finds of groups is up to `scan` and `train`."""

    def __init__(self, client: redis.asyncio.Redis, config: Config, checkpoint_every: int) -> None:
        self.client, self.config, self.every, self.keys = client, config, checkpoint_every, Keys(config.run.name)
        self.lineage, self.step, self.finished = -1, 0, False
        self.saved = 0  # the step of the last checkpoint
        self._saved_cursor: Cursor | None = None

    @property
    def version(self) -> Version:
        """Of the weights it has."""
        return Version(self.lineage, self.step)

    async def begin(self) -> None:
        """A life, from the last checkpoint."""
        self.lineage, self.step = self.lineage + 1, self.saved
        self.inbox = Inbox(self.client, self.keys.work, LEARNER, "learner")
        self._cursor: Cursor | None = self._saved_cursor
        self._told: dict[int, Trained] = {}
        self._unsaved: list[bytes] = []  # batches that no checkpoint holds
        await self._say(Hello(version=self.version, cursor=self._cursor))

    async def handle(self, entry: streams.Entry) -> None:
        """Do one entry's work and say so."""
        match messages.decode(entry.data, messages.Work):
            case Scan() as scan:
                began = time.monotonic()
                records = await self.scan(scan) if scan.step == self.step else []
                found = ScanResult(scan=scan.scan, step=scan.step, version=self.version, records=records,
                                   seconds=time.monotonic() - began)  # fmt: skip
                await self._say(found, ack=[entry.id])
            case Batch() as batch if batch.step < self.saved:
                await self.inbox.ack(entry.id)
            case Batch() as batch:
                self._unsaved.append(entry.id)
                if batch.step == self.step:
                    await self._train(batch)
                assert batch.step < self.step, f"batch {batch.step} at step {self.step}"
            case Sync() as sync:
                for lacking in [self._told[s] for s in sync.batches if s >= sync.step and s in self._told]:
                    await self._say(lacking)
                await self._say(Hello(version=self.version, cursor=self._cursor), ack=[entry.id])
            case Finish():
                await self.inbox.ack(entry.id)
                self.finished = True

    @abstractmethod
    async def scan(self, scan: Scan) -> list[Record]:
        """A record of each of its groups."""

    @abstractmethod
    async def train(self, batch: Batch) -> list[Record]:
        """A record of each of its groups, replayed ones first."""

    def references(self, batch: Batch) -> dict[str, bytes]:
        """l_ref by group, of a batch just trained."""
        return {}

    async def is_due(self) -> bool:
        """Whether the step just trained is one to save."""
        return self.step % self.every == 0

    async def _train(self, batch: Batch) -> None:
        records = await self.train(batch)
        self.step, self._cursor = self.step + 1, batch.cursor
        trained = Trained(step=batch.step, version=self.version, records=records, rejected=[], metrics={})
        self._told[batch.step] = trained
        await self._say(trained, self.references(batch))
        if await self.is_due():
            self.saved, self._saved_cursor = self.step, self._cursor
            await self._say(Checkpointed(version=self.version, step=self.step), ack=self._unsaved)
            self._unsaved.clear()

    async def _say(
        self, result: messages.Message, references: Mapping[str, bytes] | None = None, ack: Sequence[bytes] = ()
    ) -> None:
        """In one transaction with what goes with it: a notice of new weights, l_ref, the end of entries of `work`."""
        async with self.client.pipeline(transaction=True) as pipe:
            if isinstance(result, Hello | Trained):
                streams.add(pipe, self.keys.weights, messages.encode(made_notice(self.version)), keep=16)
            for id, data in (references or {}).items():
                pipe.set(self.keys.reference(id), data)
            streams.add(pipe, self.keys.results, messages.encode(result))
            streams.ack(pipe, self.keys.work, LEARNER, *ack)
            await pipe.execute()


def made_group(run: str, task: Task, tokens: int, version: Version) -> tuple[GroupHeader, bytes]:
    """A group of rollouts of `tokens` sampled tokens each, every other one right: its header and its payload."""
    g = task.group_size
    correct = [i % 2 == 0 for i in range(g)]
    rewards = [float(c) for c in correct]
    payload = encode_payload(Payload(
        id=task.id, run=run, prompt=PROMPT, lengths=np.full(g, tokens, np.int32),
        tokens=np.ones(g * tokens, np.int32), mask=np.ones(g * tokens, bool),
        l_gen=np.full(g * tokens, -0.5, np.float32), advantages=group_advantages(rewards, "std"),
        version_runs=np.array([[g * tokens, *version]], np.int32),
        turns=np.array([[i, 0, tokens] for i in range(g)], np.int32), documents=[[] for _ in range(g)],
    ))  # fmt: skip
    header = GroupHeader(
        id=task.id, kind=task.kind, number=task.number, attempt=task.attempt, round=task.round, actor="made",
        data_source=task.data_source, rewards=list(rewards), correct=correct, signs=[1 if c else -1 for c in correct],
        statuses=[FINISHED] * g, prompt_tokens=len(PROMPT), sampled_tokens=[tokens] * g, total_tokens=[tokens] * g,
        searches=[0] * g, version_min=version, version_max=version, headroom=random.Random(task.seed).random(),
        payload_bytes=len(payload), seconds=0.0, env_seconds=0.0, fingerprints={},
    )  # fmt: skip
    return header, payload


def made_record(id: str, tokens: int, headroom: float, drift: float) -> Record:
    """What a learner finds of a group, half of whose tokens are in right responses."""
    return Record(id=id, tokens=tokens, tokens_positive=tokens // 2, tokens_negative=tokens // 2, mean_p_positive=0.5,
                  mean_p_negative=0.5, headroom=headroom, sum_d=0.0, sum_d2=drift * tokens, max_abs_d=0.1, k3=0.0,
                  dead_share=0.0, headroom_ref=headroom)  # fmt: skip


def made_notice(version: Version) -> WeightsNotice:
    """Of weights that nobody loads."""
    return WeightsNotice(version=version, location=version.directory, digest="", size=0, published=0.0, canary=[])
