"""Peers of the replay service that speak the real protocol over the real Redis, with waiting in place of the work."""

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from weakref import WeakKeyDictionary

import msgspec
import redis.asyncio

from benchmarks.peers import Actor, Learner, made_record
from shared import messages, streams
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.messages import Batch, GroupHeader, Record, Scan, Task
from shared.prompts import Example
from shared.redis_client import SHORT_SHARE, connect_async, is_full, room
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


class PeerActor(Actor):
    """Answers tasks after a random time; some attempts fail; the learner's version at the start is the group's."""

    def __init__(self, url: str, config: Config, seed: int, fail_share: float = 0.0, payload_bytes: int = 64) -> None:
        name = f"peer-{uuid.uuid4().hex[:6]}"
        super().__init__(client_of(url), config, name, slots=4, reclaim_ms=400, block_ms=50)
        self.rng, self.fail_share = random.Random(seed), fail_share
        self.payload_bytes = payload_bytes
        self.right_share = 0.5
        self.fingerprints = {"tokenizer": "a"}
        self.refused = 0  # times that a full server sent a group back
        self.version = Version(0, 0)
        self.begun_too_early: list[str] = []
        self.headers: dict[str, GroupHeader] = {}

    async def _answer(self, entry: streams.Entry) -> None:
        task = messages.decode(entry.data, Task)
        self.version = version = await self.newest_version() or self.version
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


class PeerLearner(Learner):
    """Trains by counting; checkpoints every `every` steps. `trained` is what it has trained, per lineage."""

    def __init__(self, url: str, config: Config, every: int = 3, seed: int = 0, max_drift: float = 0.02) -> None:
        super().__init__(client_of(url), config, every)
        self.trained: list[tuple[int, Batch]] = []
        self.scans: list[Scan] = []
        self.rng, self.max_drift = random.Random(seed), max_drift
        self.heeds_memory = False
        self.headers: dict[str, GroupHeader] = {}  # of all groups, for a test to look at

    async def until_finished(self, within_s: float) -> None:
        """Wait for the end of the run. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not self.finished:
                await asyncio.sleep(0.02)

    async def run(self) -> None:
        """One life: from the checkpoint until cancelled or finished."""
        await self.begin()
        while not self.finished:
            raise_if_cancelled()
            for entry in await self.inbox.read(8, block_ms=50):
                await self.handle(entry)

    async def scan(self, scan: Scan) -> list[Record]:
        self.scans.append(scan)
        return [self.scanned(scan, id) for id in scan.ids]

    async def train(self, batch: Batch) -> list[Record]:
        await asyncio.sleep(0.002)
        self.trained.append((self.lineage, batch))
        return [self.record(id) for id in [*batch.replay, *batch.fresh]]

    async def is_due(self) -> bool:
        short = self.heeds_memory and room(await self.client.info("memory"), SHORT_SHARE) < 0
        return short or await super().is_due()

    def scanned(self, scan: Scan, id: str) -> Record:
        entropies = {i: self.rng.random() for i in range(self.config.rollout.group_size)}
        return msgspec.structs.replace(self.record(id), entropies=entropies if scan.per_rollout else None)

    def record(self, id: str) -> Record:
        drift, headroom = self.rng.random() * self.max_drift, self.rng.random()
        return made_record(id, 56, headroom, drift)
