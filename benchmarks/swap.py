"""From the optimiser's last step to the first token under the new weights, against copying the file and syncing it.

    python -m benchmarks.swap [--hidden 768] [--layers 11] [--vocabulary 32000] [--repetitions 5] [--requests 4]

The learner's publisher and the actor are a process each, with a shared folder and a real Redis between them: files and
digest written, canary, notice, files verified, read and exchanged between two decode steps of what is running, canary
again, token. The default is a model of 0.5 GB in float32 on the torch engine. A stall is the longest pause between two
decode steps during the swap: beside a single short request, and in the middle of a batch of `requests` that are longer
than `context` tokens, whose keys and values are computed again under the new weights before their next token.
"""

import asyncio
import os
import shutil
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
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


SHORT = 16  # tokens of the single request's prompt
MIDDLE = 4  # tokens of each request that are sampled before a version is published
POLL_S = 0.001


def measure(
    *,
    hidden: int = 768,
    layers: int = 11,
    vocabulary: int = 32_000,
    repetitions: int = 5,
    requests: int = 4,
    context: int = 256,
) -> list[Figure]:
    """Swaps beside one request and beside several by turns, with copies; the first version warms up."""
    from benchmarks.made_model import write_made_model

    with tempfile.TemporaryDirectory() as scratch, scratch_redis() as url:
        folder = write_made_model(Path(scratch) / "model", hidden=hidden, layers=layers, vocabulary=vocabulary)
        config = build({
            "run": {"name": "bench", "root": scratch}, "model": {"path": str(folder)}, "redis": {"url": url},
            "actor": {"engine": "torch"}, "weights": {"swap_timeout_s": SWAPPED_S},
        })  # fmt: skip
        loads = [(1, SHORT), (requests, context)] * repetitions
        taken = _measure(config, folder, loads)
        size = (folder / "model.safetensors").stat().st_size
    (swaps, stalls, copies), (_, batch_stalls, _) = zip(*taken[::2], strict=True), zip(*taken[1::2], strict=True)
    bound = TIMES * median(copies) + BESIDES_S
    note = f"{size / 1e6:.0f} MB; the target is {TIMES} x the copy + {1000 * BESIDES_S:.0f} ms"
    stall = {"unit": "s", "judged": "ours", "at_most": 1.0}
    return [
        Figure(name="swap", unit="s", ours=swaps, peer=copies, against="copy + fsync", judged="ours", at_most=bound,
               note=note),
        Figure(name="swap, stall of a running request", ours=stalls, **stall),
        Figure(name=f"swap, stall of {requests} requests of more than {context} tokens", ours=batch_stalls, **stall,
               note="their keys and values are computed again"),
    ]  # fmt: skip


def _measure(config: Config, folder: Path, loads: list[tuple[int, int]]) -> list[tuple[float, float, float]]:
    """Swap, stall, and copy, each in seconds, beside each load: so many requests of so many tokens."""
    import torch

    from services.learner.model.policy import load_policy
    from services.learner.weights.publisher import Publisher

    model = load_policy(folder, torch.float32, torch.device("cpu"))
    publisher = Publisher(config, model, {p.name: p.read_bytes() for p in folder.glob("tokenizer*.json")})
    spawn = get_context("spawn")
    heard, telling = spawn.Pipe(duplex=False)
    actor = spawn.Process(target=follow, args=(config.model_dump(), loads, telling), daemon=True)
    actor.start()
    taken: list[tuple[float, float, float]] = []
    try:
        with connect(config.redis.url) as client:

            def publish(number: int) -> float:
                began = time.time()
                publisher.publish(Version(0, number))
                streams.add(client, Keys(config.run.name).weights, messages.encode(publisher.notice), keep=16)
                return began

            publish(0)
            for number, (requests, tokens) in enumerate(loads, 1):
                assert _said(heard, "that its requests are running") == "running"
                began = publish(number)
                version, at, stall = _said(heard, f"a token under version {number}")
                assert version == str(Version(0, number)), f"{version} instead of version {number}"
                publisher.delete_unused(set())
                taken.append((at - began, stall, _copy(folder / "model.safetensors", config.weights_dir / "copy")))
                say("{} of more than {} tokens: {:.2f} s, stall {:.2f} s, copy {:.2f} s".format(
                    requests, tokens, *taken[-1]))  # fmt: skip
    finally:
        actor.terminate()
        actor.join()
    return taken


def _said(heard: Connection, what: str) -> Any:
    assert heard.poll(READY_S), f"the actor did not say {what} within {READY_S:.0f} s"
    return heard.recv()


def _copy(source: Path, target: Path) -> float:
    began = time.perf_counter()
    shutil.copyfile(source, target)
    handle = os.open(target, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    seconds = time.perf_counter() - began
    target.unlink()
    return seconds


def follow(settings: dict[str, Any], loads: list[tuple[int, int]], telling: Connection) -> None:
    """The actor's process: follows the weights, with one load after the other, each until the next swap."""
    asyncio.run(_follow(build(settings), loads, telling))


async def _follow(config: Config, loads: list[tuple[int, int]], telling: Connection) -> None:
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
    for requests, tokens in loads:
        sampling = Sampling(temperature=1.0, max_tokens=2**14, seed=1)
        before = engine.progress
        running = [asyncio.create_task(engine.generate([i, *range(tokens - 1)], sampling)) for i in range(requests)]
        while engine.progress < before + MIDDLE * requests and not run.done():  # noqa: ASYNC110  a thread adds to it
            await asyncio.sleep(POLL_S)
        telling.send("running")
        telling.send(await asyncio.to_thread(_watch, engine, run))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    await run


def _watch(engine: Any, run: asyncio.Task[None]) -> tuple[str, float, float]:
    """(version, when, the longest pause between two decode steps) at the first token under new weights."""
    known, seen, last, stall = engine.version, engine.progress, time.time(), 0.0
    while not run.done():
        progress, version = engine.progress, engine.version
        if progress != seen:
            now = time.time()
            seen, last, stall = progress, now, max(stall, now - last)
            if version != known:
                return str(version), now, stall
        time.sleep(POLL_S)
    raise RuntimeError("the actor no longer follows the weights")


if __name__ == "__main__":
    run_alone(measure)
