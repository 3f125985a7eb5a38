"""Groups that pass from an actor through Redis and replay to a learner: each a process, none does anything else.

The actor stores made groups by its real wire, the replay service is the real one, the learner reads payloads by its
real reader or not at all and says at once that it has trained, and that it has a checkpoint.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path

import redis

from benchmarks.peers import made_group, made_notice, made_record
from benchmarks.scratch import replay_process, scratch_redis
from services.actor.wire import Wire
from shared import messages, streams
from shared.config import Config, build
from shared.group_store import GroupStore
from shared.messages import Batch, Checkpointed, Finish, Hello, Sync, Task, Trained
from shared.redis_client import connect
from shared.streams import ACTORS, LEARNER, Entry, Inbox, Keys, SyncInbox
from shared.versions import Version

ROLLOUTS = 8
BYTES_PER_TOKEN = 8.125  # id, log-probability, mask
POLL_S = 0.001


class Actor:
    """The writing side: tasks in, made groups of about `size` bytes out."""

    def __init__(self, config: Config, size: int) -> None:
        self.config, self.wire, self.keys = config, Wire(config), Keys(config.run.name)
        self.inbox = Inbox(self.wire.client, self.keys.tasks, ACTORS, self.wire.name)
        self.store = GroupStore(self.wire.client, self.keys)
        self.tokens = max(1, round(size / BYTES_PER_TOKEN / ROLLOUTS))

    async def tasks(self, count: int) -> list[Entry]:
        """This many tasks, as soon as replay has issued them."""
        entries: list[Entry] = []
        while len(entries) < count:
            entries += await self.some_tasks(count - len(entries))
        return entries

    async def some_tasks(self, count: int) -> list[Entry]:
        """Up to this many of those that are there, or none within a second."""
        return await self.wire.call(lambda: self.inbox.read(count))

    def made(self, entry: Entry) -> tuple[str, bytes, bytes]:
        """(id, header, payload) of a group that answers the task."""
        task = messages.decode(entry.data, Task)
        header, payload = made_group(self.config.run.name, task, self.tokens, Version(0, task.min_version))
        return task.id, messages.encode(header), payload

    async def put(self, entry: Entry) -> int:
        """Make a group and store it; the bytes of its payload."""
        id, header, payload = self.made(entry)
        assert await self.wire.call(lambda: self.store.store(id, header, payload, entry.id))
        return len(payload)

    async def open_groups(self) -> int:
        """How many are stored and not trained, or not acknowledged yet."""
        fresh, unread = f"{self.keys.prefix}replay:fresh", self.keys.groups
        return await self.wire.client.hlen(fresh) + await self.wire.client.xlen(unread)  # pyright: ignore

    async def until_filed(self) -> None:
        """Until replay has acknowledged all groups."""
        while await self.wire.client.xlen(self.keys.groups):  # noqa: ASYNC110  another process empties it
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def passing(batch: int, steps: int, size: int, *, fetch: bool) -> AsyncIterator[Actor]:
    """A run under way, seen from its actor; `fetch`: whether the learner reads the payloads."""
    with tempfile.TemporaryDirectory() as folder, scratch_redis() as url:
        questions = Path(folder) / "questions.jsonl"
        questions.write_text("".join(f'{{"question": "question {i}", "answer": "{i}"}}\n' for i in range(1000)))
        config = build({
            "run": {"name": "bench", "root": folder, "steps": steps},
            "data": {"train": str(questions)}, "redis": {"url": url}, "rollout": {"group_size": ROLLOUTS},
            "learner": {"batch": batch}, "replay": {"policy": "none", "max_lag": 1, "port": 0, "max_bytes": 2**40},
        })  # fmt: skip
        learner = get_context("spawn").Process(target=learn, args=(url, config.run.name, fetch), daemon=True)
        with replay_process(config):
            learner.start()
            actor = Actor(config, size)
            try:
                yield actor
            finally:
                await actor.wire.client.aclose()
                learner.terminate()
                learner.join()


def learn(url: str, run: str, fetch: bool) -> None:
    """A learner for which training takes no time."""
    client, keys, step = connect(url), Keys(run), 0
    inbox, reader = SyncInbox(client, keys.work, LEARNER, "learner"), None
    if fetch:
        from services.learner.groups.reader import GroupReader

        reader = GroupReader(client, keys, run, cache_groups=0, cache_bytes=0, vocabulary=1000, context=2**20)
    inbox.create()
    say(client, keys, Hello(version=Version(0, 0)))
    while True:
        for entry in inbox.read(1):
            match messages.decode(entry.data, messages.Work):
                case Batch() as batch:
                    if reader is not None:
                        fetched = reader.fetch(batch.fresh, reference=False)
                        assert not fetched.refused, fetched.refused
                    step = batch.step + 1
                    records = [made_record(id, tokens=10, headroom=0.5, drift=0.0) for id in batch.fresh]
                    version = Version(0, step)
                    say(
                        client,
                        keys,
                        Trained(step=batch.step, version=version, records=records, rejected=[], metrics={}),
                    )
                    client.set(streams.saved_key(keys), step)
                    inbox.ack(entry.id)
                    say(client, keys, Checkpointed(version=version, step=step))
                case Sync():
                    say(client, keys, Hello(version=Version(0, step)))
                    inbox.ack(entry.id)
                case Finish():
                    inbox.ack(entry.id)


def say(client: redis.Redis, keys: Keys, result: messages.Message) -> None:
    """A result, with the notice of its version."""
    with client.pipeline(transaction=True) as pipe:
        if isinstance(result, Trained | Hello):
            streams.add(pipe, keys.weights, messages.encode(made_notice(result.version)), keep=16)
        streams.add(pipe, keys.results, messages.encode(result))
        pipe.execute()
