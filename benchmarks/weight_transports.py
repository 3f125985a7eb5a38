"""A version from the learner's folder to an actor's, by each transport, against a raw copy of its bytes.

    python -m benchmarks.weight_transports [--mib 256] [--repetitions 3]

Files of bfloat16 numbers, then the same after a step that moves each by 1e-6 or so, as training at that learning rate
does. Timed is what follows on the files being written: sending, fetching, and the digest of the whole. The raw copy
reads a file and writes another. What goes through Redis is also held against the least that this can cost: SET of each
chunk of a file in memory, then GET of each. A broadcast is to one actor, by processes that are up. All digests must be
those of the learner's folder.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
import torch
from safetensors.torch import save_file

from benchmarks.figure import Figure, run_alone, say
from benchmarks.scratch import scratch_redis
from services.actor.transports import Receiver
from services.actor.transports.broadcast import BroadcastReceiver
from services.actor.transports.folder import FolderReceiver
from services.actor.transports.redis_chunks import RedisReceiver
from services.actor.wire import Wire
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights.transports import Sender
from services.learner.weights.transports.broadcast import BroadcastSender
from services.learner.weights.transports.folder import FolderSender
from services.learner.weights.transports.redis_chunks import RedisSender
from shared import weights
from shared.config import build
from shared.messages import WeightsNotice
from shared.redis_client import connect
from shared.streams import Keys
from shared.transports import chunks
from shared.versions import Version

MIB = 2**20
TENSORS = 16
STEP = 1e-6
COPY, BARE = "a raw copy of the files", "SET and GET of the same bytes"
THROUGH_REDIS = {"Redis": False, "Redis, differences": True}

Versions = list[tuple[WeightsNotice, Path]]


def measure(*, mib: int = 256, repetitions: int = 3) -> list[Figure]:
    """Every transport once per repetition, side by side with the copy."""
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        versions = [_publish(root / "weights", number, mib) for number in range(2)]
        for repetition in range(repetitions):
            say(f"repetition {repetition + 1}")
            taken.setdefault(COPY, []).append(_copy(versions[1][1], root / "copy"))
            for name, seconds in asyncio.run(_all(root / str(repetition), versions)).items():
                taken.setdefault(name, []).append(seconds)
    copies, bare = taken.pop(COPY), taken.pop(BARE)
    figures = [Figure(name=name, unit="s", ours=ours, peer=copies, against=COPY) for name, ours in taken.items()]
    return figures + [
        Figure(name=name, unit="s", ours=ours, peer=bare, against=BARE)
        for name, ours in taken.items()
        if name in THROUGH_REDIS
    ]


async def _all(root: Path, versions: Versions) -> dict[str, float]:
    weights_dir = versions[1][1].parent
    taken = {"shared folder": await _timed(FolderSender(), FolderReceiver(weights_dir), versions[1])}
    with scratch_redis() as url, connect(url) as client:
        config = build({"run": {"name": "transports"}, "redis": {"url": url}, "weights": {"dir": str(weights_dir)}})
        wire = Wire(config)
        taken[BARE] = _set_and_get(client, versions[1][1])
        for name, delta in THROUGH_REDIS.items():
            sender = RedisSender(Outbox(client, Keys("transports"), Stop()), Stop(), delta=delta)
            receiver = RedisReceiver(wire, root / name)
            await _timed(sender, receiver, versions[0])
            taken[name] = await _timed(sender, receiver, versions[1])
        key = chunks.key_of(Keys("transports"), versions[1][1].name)
        stored: Any = client.hgetall(key)
        differences = sum(len(data) for field, data in stored.items() if field.startswith(b"d"))
        say(f"the differences are {differences / versions[1][0].size:.3f} of the version")
        client.sadd(wire.keys.actors, wire.name)
        client.set(wire.keys.actor(wire.name), json.dumps({"host": "here", "state": "running", "version": None}))
        broadcasts, broadcast = BroadcastSender(config, client), BroadcastReceiver(wire, root / "broadcast")
        await _timed(broadcasts, broadcast, versions[0])
        taken["broadcast over gloo"] = await _timed(broadcasts, broadcast, versions[1])
        broadcast.close()
        broadcasts.close()
        await wire.client.aclose()
    return taken


async def _timed(sender: Sender, receiver: Receiver, version: tuple[WeightsNotice, Path]) -> float:
    notice, folder = version
    began = time.perf_counter()
    await asyncio.to_thread(sender.send, notice, folder)
    received, there = await receiver.fetch(notice, None)
    await asyncio.to_thread(weights.verify, received, notice.digest)
    assert there
    return time.perf_counter() - began


def _publish(root: Path, number: int, mib: int) -> tuple[WeightsNotice, Path]:
    generator = torch.Generator().manual_seed(0)
    size = mib * MIB // TENSORS // 2

    def write(folder: Path) -> None:
        state = {}
        for i in range(TENSORS):
            weight = torch.randn(size, generator=generator) * 0.02
            moved = torch.randn(size, generator=torch.Generator().manual_seed(i)) * STEP * number
            state[f"layer.{i}"] = (weight + moved).bfloat16()
        save_file(state, folder / "model.safetensors", {"format": "pt"})

    version = Version(0, number)
    folder, digest, size_of_all = weights.publish(root, version, write)
    return WeightsNotice(
        version=version, location=folder.name, digest=digest, size=size_of_all, published=0.0, canary=[]
    ), folder


def _copy(source: Path, target: Path) -> float:
    target.mkdir(exist_ok=True)
    began = time.perf_counter()
    for path in source.iterdir():
        with path.open("rb") as read, (target / path.name).open("wb") as write:
            while data := read.read(chunks.CHUNK):
                write.write(data)
    return time.perf_counter() - began


def _set_and_get(client: redis.Redis, folder: Path) -> float:
    pieces = [chunks.read(folder, file, *cut) for file, size in chunks.files_in(folder) for cut in chunks.cuts(size)]
    began = time.perf_counter()
    for number, piece in enumerate(pieces):
        client.set(f"bare{number}", piece)
    for number in range(len(pieces)):
        client.get(f"bare{number}")
    seconds = time.perf_counter() - began
    client.flushall()
    return seconds


if __name__ == "__main__":
    run_alone(measure)
