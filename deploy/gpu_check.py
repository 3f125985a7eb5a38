"""The steps behind deploy/gpu_check.sh: sample with the engine, train on it, publish, swap, and time each."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from services.actor.engines.engine import CanaryRefused
from shared.config import Config, load
from shared.errors import UserError
from shared.gpus import visible_gpus
from shared.transports.broadcast import BUCKET, PATIENCE_S, Carrier, Round, RoundBroken, backend_for
from shared.transports.chunks import files_in

SWAPS, ROUNDS = 3, 3


@dataclass(frozen=True)
class Sizes:
    """Of the model that is made, and of what is sampled: `tokens` of a rollout at most, their lengths are ragged."""

    hidden: int
    layers: int
    vocabulary: int
    groups: int
    group_size: int
    prompt: int
    tokens: int
    micro_tokens: int


FULL = Sizes(896, 24, 151_936, groups=16, group_size=8, prompt=256, tokens=1024, micro_tokens=16_384)
TINY = Sizes(32, 2, 64, groups=3, group_size=4, prompt=8, tokens=24, micro_tokens=256)


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    what: str
    number: float
    unit: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.what:44}{self.number:>14,.4g} {self.unit:9} {self.note}".rstrip()


def make_model(folder: Path, sizes: Sizes) -> Path:
    """A random Qwen2 with tied embeddings, written as a Hugging Face folder with a tokenizer of a few words."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    heads = max(2, sizes.hidden // 64)
    config = Qwen2Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.hidden * 11 // 2,
        num_hidden_layers=sizes.layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    model: Any = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    words = {word: i for i, word in enumerate(["<pad>", "<end>", *"abcdefghijkl"])}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<end>", pad_token="<pad>", unk_token="<pad>", chat_template=template
    ).save_pretrained(folder)
    return folder


def configuration(model: Path, sizes: Sizes, device: str, root: Path, overrides: list[str]) -> Config:
    """A run's, with `overrides` on top."""
    settings = {
        "run.name": "gpu-check",
        "run.root": root,
        "model.path": model,
        "env.kind": "single",
        "env.prompt": "plain",
        "rollout.group_size": sizes.group_size,
        "rollout.max_prompt_tokens": sizes.prompt,
        "rollout.max_turn_tokens": sizes.tokens,
        "rollout.max_tokens": sizes.prompt + sizes.tokens,
        "actor.engine": "vllm" if device == "cuda" else "torch",
        "actor.groups": sizes.groups,
        "actor.gpu_memory_utilization": 0.35,  # beside a learner
        "learner.batch": sizes.groups,
        "learner.device": device,
        "learner.lr": 1e-5,
        "learner.micro_tokens": sizes.micro_tokens,
    }
    return load(None, [*(f"--{key}={value}" for key, value in settings.items()), *overrides], typed=False)


async def check(config: Config, sizes: Sizes, say: Callable[[Line], None]) -> None:
    """All of it; each line is said as soon as it is known."""
    import torch

    from services.actor.engines.canary import HIGH_OVER_MEAN, mismatch, tolerance
    from services.actor.engines.choice import make_engine
    from services.learner.assemble import assemble
    from services.learner.engine_gap import limit
    from services.learner.model.policy import pick_dtype
    from services.learner.step import scan, train_step
    from services.learner.stop import Stop
    from services.learner.weights.publisher import Publisher
    from shared.versions import Version

    made = assemble(config, Stop())
    trainer: Any = made.trainer
    say(Line("parameters", sum(p.numel() for p in trainer.model.parameters()) / 1e6, "million"))
    publisher = Publisher(config, trainer.model, made.companions)
    del made
    engine = make_engine(config)
    with timed() as started:
        await engine.start()
    say(Line("start of the engine", started(), "s", engine.name))
    try:
        stalls, delays = [await swap(engine, publisher, config, Version(0, 0))], []
        with timed() as took:
            groups = await sampled(engine, trainer.model, sizes)
        tokens, inputs = sum(g.tokens for g in groups), sum(row.inputs for g in groups for row in g.rows)
        say(Line("generation", tokens / took(), "tokens/s", f"{sum(len(g.rows) for g in groups)} rollouts at once"))

        records, _ = train_step(trainer, 0, [], groups)  # also warms up
        gap = float(np.mean([r.engine_gap for r in records if r.engine_gap is not None]))
        say(Line("engine gap, mean (l_ref - l_gen)^2", gap, "", f"the gate needs it below {limit(config):g}"))

        publisher.trained_on(groups)
        for number in range(1, SWAPS + 1):  # under running requests
            running = [asyncio.ensure_future(sampled(engine, trainer.model, replace(sizes, groups=1), number))]
            await asyncio.sleep(0.2)
            with timed() as took:
                stalls.append(await swap(engine, publisher, config, Version(0, number)))
            delays.append(took())
            await asyncio.gather(*running)
        megabytes = f"{publisher.notice.size / 1e6:,.0f} MB; all canaries passed"
        say(Line("swap, from the step's end to in force", median(delays), "s", megabytes))
        say(Line("swap, engine stands still", median(stalls), "s"))
        canary = publisher.notice.canary
        off = mismatch(canary, await engine.score([c.tokens for c in canary], [c.start for c in canary]))
        if off is not None:
            dtype = pick_dtype(config.model.dtype, trainer.model.device)
            most = tolerance(config, str(dtype).removeprefix("torch."), canary)
            say(Line("canary, |d| in the mean", off.mean, "nats", f"refused above {most:g}"))
            say(Line("canary, |d| of nine in ten tokens", off.high, "nats", f"refused above {HIGH_OVER_MEAN * most:g}"))
            say(Line("canary, |d| at most", off.worst, "nats"))
    finally:
        await engine.close()

    if trainer.model.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    noise = float(np.mean([r.noise for r in scan(trainer, groups, noise=True) if r.noise is not None]))
    say(Line("drift noise, mean d^2 of scoring twice", noise, "", f"the gate needs it below {limit(config):g}"))
    times = learner_times(trainer, groups)
    note = "" if "padded" in times else "NOT packed: learner.packed is off, or was refused when the model was loaded"
    say(Line("training, packed", inputs / times["packed"], "tokens/s", note))
    if "padded" in times:
        ratio = f"packed is {times['padded'] / times['packed']:.2f} times as fast"
        say(Line("training, padded to the longest", inputs / times["padded"], "tokens/s", ratio))
    say(Line("scan of the same groups", inputs / times["scan"], "tokens/s"))
    say(Line("scan over training", times["scan"] / times["packed"], "", "a third is what the arithmetic says"))
    trainer = replace(trainer, optimiser=None)  # its memory is what the next ones are given
    for kind, seconds, held in optimisers(trainer, groups):
        say(Line(f"step with {kind}", seconds, "s", f"{held:.1f} GiB at most on the GPU" if held else ""))
    say(broadcast(config.weights_dir / publisher.notice.location, publisher.notice, trainer.model.device.type))


async def swap(engine: Any, publisher: Any, config: Config, version: Any) -> float:
    """Publish and take over, as learner and actor do; returns the seconds in which nothing was generated."""
    publisher.publish(version)
    folder = config.weights_dir / publisher.notice.location
    await engine.verify(publisher.notice, folder)
    return await engine.swap(publisher.notice, folder)


def broadcast(folder: Path, notice: Any, device: str) -> Line:
    """A version from one carrier to another, as from learner to actor; the second time, when all is loaded."""
    import torch

    number = torch.cuda.device_count() if device == "cuda" else 1
    carriers = [Carrier("cuda:0"), Carrier("cuda:1" if number > 1 else "cuda:0")]
    files, folders, seconds = files_in(folder), [str(folder), str(folder.parent / "broadcast")], 0.0
    try:
        backend = backend_for([carrier.up().gpu for carrier in carriers])
        for _ in range(2):
            port = carriers[0].ask({"meet": "127.0.0.1"}, PATIENCE_S)["port"]
            end = Round("127.0.0.1", port, 0, 2, backend, folder.name, notice.digest, files, BUCKET, PATIENCE_S)
            with timed() as took, ThreadPoolExecutor(2) as pool:
                done = list(pool.map(Carrier.take_part, carriers, [end, msgspec.structs.replace(end, rank=1)], folders))
            assert done[1]["right"]
            seconds = took()
    finally:
        for carrier in carriers:
            carrier.kill()
    note = f"{notice.size / 1e6 / seconds:,.0f} MB/s" + ("" if backend == "nccl" else "; NCCL needs two GPUs")
    return Line(f"broadcast of a version, over {backend}", seconds, "s", note)


async def sampled(engine: Any, model: Any, sizes: Sizes, seed: int = 0) -> list[Any]:
    """Groups of ragged rollouts after random prompts, half of each group right."""
    from services.actor.engines.engine import Sampling
    from services.learner.groups.group import group_from_payload
    from services.learner.model.policy import context_of, vocabulary_of
    from shared.advantages import group_advantages
    from shared.payload import Payload

    rng, vocabulary = np.random.default_rng(seed), vocabulary_of(model)
    g = sizes.group_size

    async def one(number: int) -> Payload:
        prompt = rng.integers(2, vocabulary, sizes.prompt)
        limits = (sizes.tokens * rng.lognormal(-1.0, 0.7, g)).clip(2, sizes.tokens).astype(int)
        seeds = [1 + seed * 10**6 + number * 1000 + i for i in range(g)]
        requests = [Sampling(1.0, int(n), s) for n, s in zip(limits, seeds, strict=True)]
        out = await asyncio.gather(*(engine.generate(prompt.tolist(), request) for request in requests))
        lengths = np.array([len(o.ids) for o in out], np.int32)
        tokens = int(lengths.sum())
        return Payload(
            id=f"{seed}-{number}",
            run="gpu-check",
            prompt=prompt.astype(np.int32),
            lengths=lengths,
            tokens=np.concatenate([o.ids for o in out]).astype(np.int32),
            mask=np.ones(tokens, bool),
            l_gen=np.concatenate([o.logprobs for o in out]).astype(np.float32),
            advantages=group_advantages([float(i % 2) for i in range(g)]),
            version_runs=np.array([[tokens, 0, 0]], np.int32),
            turns=np.array([[i, 0, n] for i, n in enumerate(lengths)], np.int32),
            documents=[[] for _ in out],
        )

    payloads = await asyncio.gather(*map(one, range(sizes.groups)))
    return [group_from_payload(payload, vocabulary, context_of(model)) for payload in payloads]


def learner_times(trainer: Any, groups: list[Any]) -> dict[str, float]:
    """Seconds of a training step, packed and padded, and of a scan; medians, taken in turns."""
    from services.learner.model.packing import PACKED
    from services.learner.model.policy import is_packed
    from services.learner.step import scan, train_step

    seconds: dict[str, list[float]] = {}
    ways = [("packed", PACKED), ("padded", "sdpa")] if is_packed(trainer.model) else [("packed", None)]
    for number in range(ROUNDS):
        for way, attention in ways:
            if attention:
                trainer.model.set_attn_implementation(attention)
            with timed() as took:
                train_step(trainer, number, [], groups)
            seconds.setdefault(way, []).append(took())
        if ways[0][1]:
            trainer.model.set_attn_implementation(PACKED)
        with timed() as took:
            scan(trainer, groups)
        seconds.setdefault("scan", []).append(took())
    return {way: median(each) for way, each in seconds.items()}


def optimisers(trainer: Any, groups: list[Any]) -> Iterator[tuple[str, float, float]]:
    """Of each kind a second step's seconds and the most GiB of the GPU in use; what is not installed is left out."""
    import torch

    from services.learner.model.optimise import Optimiser
    from services.learner.step import train_step

    on_gpu = trainer.model.device.type == "cuda"
    kinds = {"adamw": {}, "adamw8bit": {"optimizer": "adamw8bit"}, "adamw, offloaded": {"offload": True}}
    for kind, changes in kinds.items():
        settings = trainer.settings.model_copy(update={"optimizer": "adamw", "offload": False} | changes)
        try:
            optimiser = Optimiser(trainer.model.parameters(), settings, steps=10)
        except UserError as error:
            print(f"gpu_check: {error}", file=sys.stderr)
            continue
        with_it = replace(trainer, optimiser=optimiser, settings=settings)
        train_step(with_it, 0, [], groups)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        with timed() as took:
            train_step(with_it, 1, [], groups)
        yield kind, took(), torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
        del optimiser, with_it


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Wall-clock seconds of the block, once it has ended. What is timed here ends by reading a number from the GPU."""
    began, taken = time.perf_counter(), [0.0]
    try:
        yield lambda: taken[0]
    finally:
        taken[0] = time.perf_counter() - began


def main(words: list[str]) -> int:
    """Print the table; 2 and a sentence on stderr where something is missing."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model's folder (default: one is made)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a made model and rollouts of a few tokens")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each number")
    args, overrides = parser.parse_known_args(words)
    if args.device == "cuda" and not visible_gpus():
        print("gpu_check: no NVIDIA GPU is seen on this machine, so nothing was checked.", file=sys.stderr)
        return 2
    sizes = TINY if args.tiny else FULL
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as root:
            model = args.model or make_model(Path(root) / "model", sizes)
            config = configuration(model, sizes, args.device, Path(root), overrides)
            asyncio.run(
                check(config, sizes, lambda line: print(json.dumps(vars(line)) if args.json else line, flush=True))
            )
    except (UserError, CanaryRefused, RoundBroken) as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
