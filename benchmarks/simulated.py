"""A run with a real replay process, a real Redis and the real wire, in which actors and learner wait instead of work.

They speak the protocol: groups of the drawn length are encoded and stored in the call that ends their task, payloads
are fetched and decoded by whoever trains or scans them, and l_ref, notice and result of a step are one transaction.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import redis.asyncio

from benchmarks.load import WARM_UP, Load
from benchmarks.scratch import replay_process, scratch_redis
from shared import events, messages, streams
from shared.advantages import group_advantages
from shared.cancellation import raise_if_cancelled
from shared.config import Config, build
from shared.group_store import GroupStore
from shared.messages import (
    FINISHED,
    Batch,
    Checkpointed,
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
from shared.payload import Payload, decode_payload, encode_payload
from shared.redis_client import connect_async
from shared.streams import ACTORS, LEARNER, Inbox, Keys
from shared.versions import Version

PROMPT = np.arange(32, dtype=np.int32)
TAU = 1e-2


@dataclass
class Seen:
    """What a run took, warm-up left out. Seconds are those of the learner, per step."""

    load: Load
    idle_s: list[float] = field(default_factory=list)  # waiting for work, scans left out
    step_s: list[float] = field(default_factory=list)
    fetch_s: list[float] = field(default_factory=list)  # reading and decoding payloads
    begun: list[int] = field(default_factory=list)  # tasks
    trained: list[int] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # replay's record of each step
    cpu_s: dict[str, float] = field(default_factory=dict)  # of the processor: "replay", "redis", "peers"

    @property
    def idle_share(self) -> float:
        """Of the time of the measured steps."""
        return sum(self.idle_s) / sum(self.step_s)

    @property
    def mean_step_s(self) -> float:
        """Seconds per measured step."""
        return sum(self.step_s) / len(self.step_s)

    def total(self, name: str) -> float:
        """The sum of a number of replay's records over the measured steps."""
        return sum(record[name] for record in self.events)


def simulate(load: Load) -> Seen:
    """Play the load to the end of its measured steps. Raises what ended a peer."""
    with tempfile.TemporaryDirectory() as folder, scratch_redis() as url:
        config = configured(load, url, Path(folder))
        with replay_process(config) as replay:
            return asyncio.run(_play(config, load, replay))


def configured(load: Load, url: str, folder: Path) -> Config:
    """The run's configuration; its questions are written into `folder`."""
    questions = folder / "questions.jsonl"
    questions.write_text("".join(f'{{"question": "question {i}", "answer": "{i}"}}\n' for i in range(1000)))
    steps = WARM_UP + load.steps + load.max_lag + 1  # the last ones start fewer tasks, and are not waited for
    return build({
        "run": {"name": "bench", "root": str(folder), "steps": steps, "seed": load.seed},
        "data": {"train": str(questions)},
        "redis": {"url": url},
        "rollout": {"group_size": load.group_size},
        "learner": {"batch": load.batch},
        "replay": {"policy": load.policy, "select": load.select, "capacity": load.stored or 3 * load.batch,
                   "max_lag": load.max_lag, "tau": TAU, "port": 0},
    })  # fmt: skip


async def _play(config: Config, load: Load, replay: int) -> Seen:
    client, seen = connect_async(config.redis.url), Seen(load)
    try:
        async with asyncio.TaskGroup() as tasks:
            sizes = [len(part) for part in np.array_split(np.arange(load.slots), load.actors) if len(part)]
            actors = [tasks.create_task(Actor(client, config, seen).run(i, n)) for i, n in enumerate(sizes)]
            learner = Learner(client, config, seen)
            await learner.run(WARM_UP)
            before = await _cpu_seconds(client, replay)
            await learner.run(WARM_UP + load.steps)
            after = await _cpu_seconds(client, replay)
            seen.cpu_s = {name: after[name] - before[name] for name in after}
            for actor in actors:
                actor.cancel()
        while len(seen.events) < load.steps:  # replay may still be at the last one
            reply: Any = await client.xrange(Keys(config.run.name).events)
            records = [record for _, record in events.parse(reply) if record["kind"] == "step"]
            seen.events = [record for record in records if WARM_UP <= record["step"] < WARM_UP + load.steps]
            await asyncio.sleep(0.01)
    finally:
        await client.aclose()
    return seen


async def _cpu_seconds(client: redis.asyncio.Redis, replay: int) -> dict[str, float]:
    """What each part has used since it started; Redis counts what its clients make it do."""
    server: Any = await client.info("cpu")
    return {
        "replay": sum(psutil.Process(replay).cpu_times()[:2]),
        "redis": server["used_cpu_user"] + server["used_cpu_sys"],
        "peers": time.process_time(),
    }


class Actor:
    """Keeps its slots busy; a slot waits for as long as a group of the drawn length takes."""

    def __init__(self, client: redis.asyncio.Redis, config: Config, seen: Seen) -> None:
        self.client, self.config, self.seen, self.load = client, config, seen, seen.load
        self.keys = Keys(config.run.name)
        self.store = GroupStore(client, self.keys)

    async def run(self, number: int, slots: int) -> None:
        """Until cancelled."""
        inbox = Inbox(self.client, self.keys.tasks, ACTORS, f"actor-{number}")
        free = asyncio.Semaphore(slots)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await free.acquire()
                raise_if_cancelled()
                entries = await inbox.read(1)
                if not entries:
                    free.release()
                for entry in entries:
                    tasks.create_task(self._answer(entry)).add_done_callback(lambda _: free.release())

    async def _answer(self, entry: streams.Entry) -> None:
        began = time.monotonic()
        task = messages.decode(entry.data, Task)
        self.seen.begun.append(task.number)
        newest: Any = await self.client.xrevrange(self.keys.weights, count=1)
        version = messages.decode(newest[0][1][streams.FIELD], WeightsNotice).version
        assert version.number >= task.min_version, "a task is sent behind the weights it may be answered with"
        length = self.load.length(task.number)
        await asyncio.sleep(began + length * self.load.group_s - time.monotonic())
        header, payload = made_group(self.config, task, max(2, round(length * self.load.tokens)), version)
        await self.store.store(task.id, messages.encode(header), payload, entry.id)


def made_group(config: Config, task: Task, tokens: int, version: Version) -> tuple[GroupHeader, bytes]:
    """A group of rollouts of `tokens` sampled tokens each, every other one right."""
    g = task.group_size
    correct = [i % 2 == 0 for i in range(g)]
    rewards = [float(c) for c in correct]
    payload = encode_payload(Payload(
        id=task.id, run=config.run.name, prompt=PROMPT, lengths=np.full(g, tokens, np.int32),
        tokens=np.ones(g * tokens, np.int32), mask=np.ones(g * tokens, bool),
        l_gen=np.full(g * tokens, -0.5, np.float32), advantages=group_advantages(rewards, "std"),
        version_runs=np.array([[g * tokens, *version]], np.int32),
        turns=np.array([[i, 0, tokens] for i in range(g)], np.int32), documents=[[] for _ in range(g)],
    ))  # fmt: skip
    header = GroupHeader(
        id=task.id, kind=task.kind, number=task.number, attempt=task.attempt, round=task.round, actor="simulated",
        data_source=task.data_source, rewards=list(rewards), correct=correct, signs=[1 if c else -1 for c in correct],
        statuses=[FINISHED] * g, prompt_tokens=len(PROMPT), sampled_tokens=[tokens] * g, total_tokens=[tokens] * g,
        searches=[0] * g, version_min=version, version_max=version, headroom=random.Random(task.seed).random(),
        payload_bytes=len(payload), seconds=0.0, env_seconds=0.0, fingerprints={},
    )  # fmt: skip
    return header, payload


class Learner:
    """Scans and trains by waiting, for as long as the groups' lengths take."""

    def __init__(self, client: redis.asyncio.Redis, config: Config, seen: Seen) -> None:
        self.client, self.config, self.seen, self.load = client, config, seen, seen.load
        self.keys, self.step = Keys(config.run.name), 0
        self.rng = random.Random(self.load.seed)
        self.held: dict[str, tuple[int, int]] = {}  # (task's number, tokens) of the groups that were fetched
        self.open: list[bytes] = []  # batches that no checkpoint holds yet
        self.inbox = Inbox(client, self.keys.work, LEARNER, "learner")
        self.idle, self.stepped = 0.0, time.monotonic()  # seconds without work, since the last step's end

    async def run(self, steps: int) -> None:
        """Until step `steps` is the next one."""
        if self.step == 0:
            await self._say(Hello(version=self._version))
        while self.step < steps:
            raise_if_cancelled()
            waiting = time.monotonic()
            entries = await self.inbox.read(1)
            self.idle += time.monotonic() - waiting
            for entry in entries:
                match messages.decode(entry.data, messages.Work):
                    case Scan() as scan:
                        await self._scan(scan)
                        await self.inbox.ack(entry.id)
                    case Sync():
                        await self._say(Hello(version=self._version))
                        await self.inbox.ack(entry.id)
                    case Batch() as batch:
                        self.open.append(entry.id)
                        await self._train(batch)
                        self.idle, self.stepped = 0.0, time.monotonic()

    async def _scan(self, scan: Scan) -> None:
        began = time.monotonic()
        await self._work(scan.ids, self.load.scan_share)
        records = [self._record(id, self.rng.random() < self.load.acceptance) for id in scan.ids]
        seconds = time.monotonic() - began
        await self._say(ScanResult(scan=scan.scan, step=self.step, version=self._version, records=records,
                                   seconds=seconds))  # fmt: skip

    async def _train(self, batch: Batch) -> None:
        assert batch.step == self.step, f"batch {batch.step} at step {self.step}"
        fetch_s = await self._work([*batch.replay, *batch.fresh], 1.0)
        records = [self._record(id, True) for id in [*batch.replay, *batch.fresh]]
        self.step += 1
        trained = Trained(step=batch.step, version=self._version, records=records, rejected=[], metrics={})
        await self._say(trained, batch.fresh if self.config.replay.policy != "none" else ())
        if self.step % self.config.learner.checkpoint_every == 0:
            async with self.client.pipeline(transaction=True) as pipe:
                streams.ack(pipe, self.keys.work, LEARNER, *self.open)
                saved = Checkpointed(version=self._version, step=self.step)
                streams.add(pipe, self.keys.results, messages.encode(saved))
                await pipe.execute()
            self.open.clear()
        if batch.step >= WARM_UP:
            self.seen.idle_s.append(self.idle)
            self.seen.step_s.append(time.monotonic() - self.stepped)
            self.seen.fetch_s.append(fetch_s)
            self.seen.trained += [self.held[id][0] for id in batch.fresh]

    async def _work(self, ids: list[str], share: float) -> float:
        """Fetch the groups, then wait for `share` of their training time; the seconds of fetching, which are extra."""
        began = time.monotonic()
        absent = [id for id in ids if id not in self.held]
        for at in range(0, len(absent), 16):
            chunk = absent[at : at + 16]
            reply: Any = await self.client.mget([self.keys.payload(id) for id in chunk])
            for id, data in zip(chunk, reply, strict=True):
                payload = decode_payload(data, self.config.run.name)
                self.held[id] = int(id[1:]), len(payload.l_gen)
        fetched = time.monotonic()
        until = fetched + share * sum(self.load.train_s(self.held[id][0]) for id in ids)
        await asyncio.sleep(until - time.monotonic())
        return fetched - began

    async def _say(self, result: messages.Message, referenced: Iterable[str] = ()) -> None:
        """What follows a step or a scan, in one transaction; a step's fresh groups get their l_ref."""
        async with self.client.pipeline(transaction=True) as pipe:
            if isinstance(result, Hello | Trained):
                notice = WeightsNotice(version=self._version, location=self._version.directory, digest="", size=0,
                                       published=0.0, canary=[])  # fmt: skip
                streams.add(pipe, self.keys.weights, messages.encode(notice), keep=16)
            for id in referenced:
                pipe.set(self.keys.reference(id), bytes(4 * self.held[id][1]))
            streams.add(pipe, self.keys.results, messages.encode(result))
            await pipe.execute()

    @property
    def _version(self) -> Version:
        return Version(0, self.step)

    def _record(self, id: str, passes: bool) -> Record:
        tokens, headroom = self.held[id][1], self.rng.random()
        drift = TAU * (0.5 if passes else 2.0)
        return Record(id=id, tokens=tokens, tokens_positive=tokens // 2, tokens_negative=tokens // 2,
                      mean_p_positive=0.5, mean_p_negative=0.5, headroom=headroom, sum_d=0.0, sum_d2=drift * tokens,
                      max_abs_d=0.1, k3=0.0, dead_share=0.0, headroom_ref=headroom)  # fmt: skip
