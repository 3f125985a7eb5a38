"""A run with a real replay process, a real Redis and the real wire, in which actors and learner wait instead of work.

They speak the protocol (`benchmarks/peers.py`): groups of the drawn length are encoded and stored in the call that ends
their task, payloads are fetched and decoded by whoever trains or scans them, and l_ref, notice and result of a step are
one transaction.
"""

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import redis.asyncio

from benchmarks.load import WARM_UP, Load
from benchmarks.peers import Actor, Learner, made_group, made_record
from benchmarks.scratch import replay_process, scratch_redis
from shared import events, messages
from shared.cancellation import raise_if_cancelled
from shared.config import Config, build
from shared.messages import Batch, Record, Scan, Task
from shared.payload import decode_payload
from shared.redis_client import connect_async
from shared.streams import Entry, Keys

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
            actors = [tasks.create_task(WaitingActor(client, config, seen, *one).run()) for one in enumerate(sizes)]
            learner = WaitingLearner(client, config, seen)
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


class WaitingActor(Actor):
    """Waits for as long as a group of the drawn length takes."""

    def __init__(self, client: redis.asyncio.Redis, config: Config, seen: Seen, number: int, slots: int) -> None:
        super().__init__(client, config, f"actor-{number}", slots)
        self.seen, self.load = seen, seen.load

    async def _answer(self, entry: Entry) -> None:
        began = time.monotonic()
        task = messages.decode(entry.data, Task)
        self.seen.begun.append(task.number)
        version = await self.newest_version()
        assert version and version.number >= task.min_version, (
            "a task is sent behind the weights it may be answered with"
        )
        length = self.load.length(task.number)
        await asyncio.sleep(began + length * self.load.group_s - time.monotonic())
        tokens = max(2, round(length * self.load.tokens))
        header, payload = made_group(self.config.run.name, task, tokens, version)
        await self.store.store(task.id, messages.encode(header), payload, entry.id)


class WaitingLearner(Learner):
    """Scans and trains by waiting, for as long as the groups' lengths take."""

    def __init__(self, client: redis.asyncio.Redis, config: Config, seen: Seen) -> None:
        super().__init__(client, config, config.learner.checkpoint_every)
        self.seen, self.load = seen, seen.load
        self.rng = random.Random(self.load.seed)
        self.held: dict[str, tuple[int, int]] = {}  # (task's number, tokens) of the groups that were fetched
        self.idle, self.stepped = 0.0, time.monotonic()  # seconds without work, since the last step's end

    async def run(self, steps: int) -> None:
        """Until step `steps` is the next one."""
        if self.step == 0:
            await self.begin()
        while self.step < steps:
            raise_if_cancelled()
            waiting = time.monotonic()
            entries = await self.inbox.read(1)
            self.idle += time.monotonic() - waiting
            for entry in entries:
                step = self.step
                await self.handle(entry)
                if self.step > step:
                    self._end(step)

    async def scan(self, scan: Scan) -> list[Record]:
        await self._work(scan.ids, self.load.scan_share)
        return [self._record(id, self.rng.random() < self.load.acceptance) for id in scan.ids]

    async def train(self, batch: Batch) -> list[Record]:
        ids = [*batch.replay, *batch.fresh]
        fetch_s = await self._work(ids, 1.0)
        if batch.step >= WARM_UP:
            self.seen.fetch_s.append(fetch_s)
            self.seen.trained += [self.held[id][0] for id in batch.fresh]
        return [self._record(id, True) for id in ids]

    def references(self, batch: Batch) -> dict[str, bytes]:
        if self.config.replay.policy == "none":
            return {}
        return {id: bytes(4 * self.held[id][1]) for id in batch.fresh}

    def _end(self, step: int) -> None:
        if step >= WARM_UP:
            self.seen.idle_s.append(self.idle)
            self.seen.step_s.append(time.monotonic() - self.stepped)
        self.idle, self.stepped = 0.0, time.monotonic()

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

    def _record(self, id: str, passes: bool) -> Record:
        return made_record(id, self.held[id][1], self.rng.random(), TAU * (0.5 if passes else 2.0))
