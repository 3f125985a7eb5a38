"""Peers of the replay service that speak the real protocol over the real Redis, with waiting in place of the work."""

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import redis.asyncio

from shared import messages, streams
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.group_store import GroupStore
from shared.messages import (
    Batch,
    Checkpointed,
    Finish,
    GroupHeader,
    Hello,
    Record,
    Scan,
    ScanResult,
    Sync,
    Task,
    Trained,
)
from shared.prompts import Example
from shared.redis_client import SHORT_SHARE, connect_async, is_full
from shared.streams import ACTORS, LEARNER, Inbox, Keys
from shared.versions import Version

_closers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]] = WeakKeyDictionary()


def client_of(url: str) -> redis.asyncio.Redis:
    """A client that its event loop closes, behind its last task: however a test fails, the next one does not notice."""
    closers = _closers.setdefault(asyncio.get_running_loop(), [])
    client = connect_async(url)
    closers.append(_closing(client))
    with suppress(StopIteration):
        closers[-1].asend(None).send(None)  # a loop that ends closes every generator that was begun in it
    return client


async def _closing(client: redis.asyncio.Redis) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


class Questions:
    """A data set of n numbered questions."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Example:
        return Example(
            id=str(index),
            data_source="made",
            messages=None,
            question=f"question {index}",
            ground_truth=[str(index)],
        )


class PeerActor:
    """Answers tasks after a random time; some attempts fail; the learner's version at the start is the group's."""

    def __init__(self, url: str, config: Config, seed: int, fail_share: float = 0.0, payload_bytes: int = 64) -> None:
        self.client, self.keys = client_of(url), Keys(config.run.name)
        self.rng, self.fail_share, self.slots = random.Random(seed), fail_share, 4
        self.payload_bytes = payload_bytes
        self.right_share = 0.5
        self.fingerprints = {"tokenizer": "a"}
        self.refused = 0  # times that a full server sent a group back
        self.id = f"peer-{uuid.uuid4().hex[:6]}"
        self.store = GroupStore(self.client, self.keys)
        self.version = Version(0, 0)
        self.begun_too_early: list[str] = []
        self.headers: dict[str, GroupHeader] = {}

    async def run(self) -> None:
        inbox = Inbox(self.client, self.keys.tasks, ACTORS, self.id, reclaim_ms=400)
        running: set[asyncio.Task] = set()
        while True:
            raise_if_cancelled()
            entries = await inbox.read(self.slots - len(running), block_ms=50) if len(running) < self.slots else []
            for entry in entries:
                running.add(asyncio.create_task(self._answer(entry)))
            if running:
                await asyncio.wait(running, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            for done in [t for t in running if t.done()]:
                done.result()
                running.discard(done)

    async def _answer(self, entry: streams.Entry) -> None:
        task = messages.decode(entry.data, Task)
        notice: Any = await self.client.xrevrange(self.keys.weights, count=1)
        if notice:  # else the server was emptied
            self.version = messages.decode(notice[0][1][streams.FIELD], messages.WeightsNotice).version
        version = self.version
        if version.number < task.min_version and version.lineage == 0:
            self.begun_too_early.append(task.id)
        await asyncio.sleep(self.rng.expovariate(1 / 0.004))
        failed = self.rng.random() < self.fail_share
        header = self.header_for(task, Version(version.lineage, max(version.number, task.min_version)), failed)
        failed = not header.usable
        payload = b"" if failed or task.kind == "eval" else b"p" * header.payload_bytes
        while True:
            try:
                stored = await self.store.store(task.id, messages.encode(header), payload, entry.id)
                break
            except redis.ResponseError as error:
                if not is_full(error):
                    raise
                self.refused += 1
                await asyncio.sleep(0.02)
        if stored and not failed:
            self.headers[task.id] = header

    def header_for(self, task: Task, version: Version, failed: bool) -> GroupHeader:
        """What a task comes to."""
        header = header_for(task, self.rng, version, failed, self.right_share)
        return msgspec.structs.replace(
            header, payload_bytes=0 if failed else self.payload_bytes, fingerprints=self.fingerprints
        )


def header_for(
    task: Task, rng: random.Random, version: Version, failed: bool = False, right_share: float = 0.5
) -> GroupHeader:
    """A header with random outcomes."""
    g = task.group_size
    correct = [rng.random() < right_share for _ in range(g)]
    return GroupHeader(
        id=task.id, kind=task.kind, number=task.number, attempt=task.attempt, round=task.round, actor="peer",
        data_source=task.data_source, rewards=[float(c) for c in correct], correct=correct,
        signs=signs_of(correct), statuses=["finished"] * g, prompt_tokens=5, sampled_tokens=[7] * g,
        total_tokens=[9] * g, searches=[1] * g, version_min=version, version_max=version, headroom=rng.random(),
        payload_bytes=0 if failed else 64, seconds=0.1, env_seconds=0.0, fingerprints={"tokenizer": "a"},
        failure="the environment did not answer" if failed else "",
    )  # fmt: skip


def signs_of(correct: list[bool]) -> list[int]:
    """Of the advantages that the rewards 0 and 1 give."""
    return [1 if c else -1 for c in correct] if len(set(correct)) > 1 else [0] * len(correct)


class PeerLearner:
    """Trains by counting; checkpoints every `every` steps. `trained` is what it has trained, per lineage."""

    def __init__(self, url: str, config: Config, every: int = 3, seed: int = 0, max_drift: float = 0.02) -> None:
        self.url, self.config, self.keys, self.every = url, config, Keys(config.run.name), every
        self.client = client_of(url)
        self.saved = 0
        self.saved_cursor: messages.Cursor | None = None
        self.lineage = -1
        self.trained: list[tuple[int, Batch]] = []
        self.scans: list[Scan] = []
        self.rng, self.max_drift = random.Random(seed), max_drift
        self.finished = False
        self.heeds_memory = False
        self.headers: dict[str, GroupHeader] = {}  # of all groups, for a test to look at

    async def until_finished(self, within_s: float) -> None:
        """Wait for the end of the run. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not self.finished:
                await asyncio.sleep(0.02)

    async def run(self) -> None:
        """One life: from the checkpoint until cancelled or finished."""
        self.lineage += 1
        step = self.saved
        inbox = Inbox(self.client, self.keys.work, LEARNER, "learner")
        cursor, told = self.saved_cursor, {}
        await self._publish(Version(self.lineage, step), Hello(version=Version(self.lineage, step), cursor=cursor))
        unsaved: list[bytes] = []
        while True:
            raise_if_cancelled()
            for entry in await inbox.read(8, block_ms=50):
                match messages.decode(entry.data, messages.Work):
                    case Scan() as scan:
                        self.scans.append(scan)
                        records = [self.scanned(scan, id) for id in scan.ids] if scan.step == step else []
                        result = ScanResult(scan=scan.scan, step=scan.step, version=Version(self.lineage, step),
                                            records=records, seconds=0.001)  # fmt: skip
                        async with self.client.pipeline(transaction=True) as pipe:
                            streams.add(pipe, self.keys.results, messages.encode(result))
                            streams.ack(pipe, entry.stream, LEARNER, entry.id)
                            await pipe.execute()
                    case Batch() as batch:
                        if batch.step < self.saved:
                            await inbox.ack(entry.id)
                            continue
                        unsaved.append(entry.id)
                        if batch.step < step:
                            continue
                        assert batch.step == step, f"batch {batch.step} at step {step}"
                        await asyncio.sleep(0.002)
                        self.trained.append((self.lineage, batch))
                        step += 1
                        version = Version(self.lineage, step)
                        records = [self.record(id) for id in [*batch.replay, *batch.fresh]]
                        told[batch.step] = Trained(step=batch.step, version=version, records=records,
                                                   rejected=[], metrics={"loss": 0.0})  # fmt: skip
                        cursor = batch.cursor
                        await self._publish(version, told[batch.step])
                        if step % self.every == 0 or (self.heeds_memory and await self._memory_is_short()):
                            self.saved, self.saved_cursor = step, cursor
                            async with self.client.pipeline(transaction=True) as pipe:
                                streams.ack(pipe, entry.stream, LEARNER, *unsaved)
                                streams.add(
                                    pipe, self.keys.results, messages.encode(Checkpointed(version=version, step=step))
                                )
                                await pipe.execute()
                            unsaved.clear()
                    case Sync() as sync:
                        for lacking in [told[s] for s in sync.batches if s >= sync.step and s in told]:
                            await self._publish(Version(self.lineage, step), lacking)
                        version = Version(self.lineage, step)
                        await self._publish(version, Hello(version=version, cursor=cursor))
                        await inbox.ack(entry.id)
                    case Finish():
                        await inbox.ack(entry.id)
                        self.finished = True
                        return

    async def _memory_is_short(self) -> bool:
        memory = await self.client.info("memory")
        return 0 < SHORT_SHARE * memory["maxmemory"] < memory["used_memory"]

    async def _publish(self, version: Version, result: messages.Message) -> None:
        notice = messages.WeightsNotice(
            version=version, location=version.directory, digest="", size=0, published=0.0, canary=[]
        )
        async with self.client.pipeline(transaction=True) as pipe:
            streams.add(pipe, self.keys.weights, messages.encode(notice), keep=16)
            streams.add(pipe, self.keys.results, messages.encode(result))
            await pipe.execute()

    def scanned(self, scan: Scan, id: str) -> Record:
        entropies = {i: self.rng.random() for i in range(self.config.rollout.group_size)}
        return msgspec.structs.replace(self.record(id), entropies=entropies if scan.per_rollout else None)

    def record(self, id: str) -> Record:
        drift, headroom = self.rng.random() * self.max_drift, self.rng.random()
        return Record(id=id, tokens=56, tokens_positive=28, tokens_negative=28, mean_p_positive=0.5,
        mean_p_negative=0.5,
                      headroom=headroom, sum_d=0.0, sum_d2=drift * 56, max_abs_d=0.1, k3=0.0, dead_share=0.0,
                      headroom_ref=headroom)  # fmt: skip
