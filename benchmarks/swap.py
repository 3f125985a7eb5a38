"""From the optimiser's last step to the first token under the new weights, against copying the file and syncing it.

    python -m benchmarks.swap [--hidden 768] [--layers 11] [--vocabulary 32000] [--repetitions 5]

The learner's publisher and the actor are a process each, with a shared folder and a real Redis between them: files and
digest written, canary, notice, files verified, read and exchanged between two decode steps of a running
request, canary again, token. The default is a model of 0.5 GB in float32 on the torch engine. A stall is the longest
pause between two tokens of that request during the swap.
"""

import asyncio
import os
import shutil
import tempfile
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure, run_alone, say
from benchmarks.scratch import scratch_redis
from shared import messages, streams
from shared.config import Config, build
from shared.redis_client import connect
from shared.streams import Keys
from shared.versions import Version

READY_S, SWAPPED_S = 300.0, 300.0
BESIDES_S = 0.05
TIMES = 1.2


def measure(*, hidden: int = 768, layers: int = 11, vocabulary: int = 32_000, repetitions: int = 5) -> list[Figure]:
    """Swaps and copies by turns; the first turn warms up."""
    from benchmarks.made_model import write_made_model

    with tempfile.TemporaryDirectory() as scratch, scratch_redis() as url:
        folder = write_made_model(Path(scratch) / "model", hidden=hidden, layers=layers, vocabulary=vocabulary)
        config = build({
            "run": {"name": "bench", "root": scratch}, "model": {"path": str(folder)}, "redis": {"url": url},
            "actor": {"engine": "torch"}, "weights": {"swap_timeout_s": SWAPPED_S},
        })  # fmt: skip
        swaps, stalls, copies = _measure(config, folder, repetitions)
        size = (folder / "model.safetensors").stat().st_size
    bound = TIMES * sorted(copies)[len(copies) // 2] + BESIDES_S
    note = f"{size / 1e6:.0f} MB; the target is {TIMES} x the copy + {1000 * BESIDES_S:.0f} ms"
    return [
        Figure(name="swap", unit="s", ours=swaps, peer=copies, against="copy + fsync", judged="ours", at_most=bound,
               note=note),
        Figure(name="swap, stall of a running request", unit="s", ours=stalls, judged="ours", at_most=1.0),
    ]  # fmt: skip


def _measure(config: Config, folder: Path, repetitions: int) -> tuple[list[float], list[float], list[float]]:
    import torch

    from services.learner.model.policy import load_policy
    from services.learner.weights.publisher import Publisher

    model = load_policy(folder, torch.float32, torch.device("cpu"))
    publisher = Publisher(config, model, {p.name: p.read_bytes() for p in folder.glob("tokenizer*.json")})
    spawn = get_context("spawn")
    heard, telling = spawn.Pipe(duplex=False)
    actor = spawn.Process(target=follow, args=(config.model_dump(), telling), daemon=True)
    actor.start()
    taken: list[tuple[float, float, float]] = []
    try:
        with connect(config.redis.url) as client:
            for number in range(repetitions + 1):
                began, version = time.time(), Version(0, number)
                publisher.publish(version)
                streams.add(client, Keys(config.run.name).weights, messages.encode(publisher.notice), keep=16)
                at, stall = _first_token(heard, str(version))
                publisher.delete_unused(set())
                taken.append((at - began, stall, _copy(folder / "model.safetensors", config.weights_dir / "copy")))
                say("version {}: {:.2f} s, stall {:.2f} s, copy {:.2f} s".format(number, *taken[-1]))
    finally:
        actor.terminate()
        actor.join()
    swaps, stalls, copies = zip(*taken[1:], strict=True)
    return list(swaps), list(stalls), list(copies)


def _first_token(heard: Connection, version: str) -> tuple[float, float]:
    """When it came, and the longest pause since the swap before."""
    while True:
        assert heard.poll(READY_S), f"no token under {version} within {READY_S:.0f} s"
        said, at, stall = heard.recv()
        if said == version:
            return at, stall


def _copy(source: Path, target: Path) -> float:
    began = time.perf_counter()
    shutil.copyfile(source, target)
    handle = os.open(target, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    seconds = time.perf_counter() - began
    target.unlink()
    return seconds


def follow(settings: dict[str, Any], telling: Connection) -> None:
    """The actor's process: follows the weights, and samples one token after another all the while."""
    asyncio.run(_follow(build(settings), telling))


async def _follow(config: Config, telling: Connection) -> None:
    from services.actor.engines.engine import Sampling
    from services.actor.engines.torch_engine import TorchEngine
    from services.actor.follower import Follower
    from services.actor.wire import Wire

    async def nothing() -> None: ...

    engine, wire = TorchEngine(config), Wire(config)
    await engine.start()
    following = Follower(config, engine, wire, nothing, nothing)
    run = asyncio.create_task(following.run())
    await following.wait_for(0, READY_S)
    known, last, stall, prompt = "", time.time(), 0.0, list(range(16))
    with suppress(asyncio.CancelledError):
        while not run.done():
            made = await engine.generate(prompt, Sampling(temperature=1.0, max_tokens=1, seed=1))
            now, version = time.time(), str(made.version_runs[-1][1])
            stall, last = max(stall, now - last), now
            if version != known:
                telling.send((version, now, stall))
                known, stall = version, 0.0
    run.result()


if __name__ == "__main__":
    run_alone(measure)
