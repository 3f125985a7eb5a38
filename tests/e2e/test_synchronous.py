"""At lag 0, without replay, the services together are the plain algorithm: the same weights, parameter by parameter."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import torch
from safetensors.torch import load_file

from cli.run.recorder import read_records
from shared.config import Config, load
from tests.e2e import reference_trainer
from tests.e2e.command import ATLAS, REPOSITORY, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, BATCH, GROUP_SIZE = 3, 4, 6
BOUND = 1e-5  # on the difference of any parameter; one step moves most of them by about LR
# The engines differ in the seventh digit of a log-probability, so a sampled token would differ where its uniform number
# falls within about 1e-7 of a boundary: once in several thousand runs of this size. The seed is one with mixed groups.
# AdamW divides a gradient by its own size, which would turn the rounding noise of one that vanishes into a step of
# order lr; gradients clipped to a small norm stay far above its epsilon (1e-8), and their noise far below.
LR, GRAD_CLIP = 3e-4, 1e-3
CLIP = 0.02  # so narrow that it bites in the second mini-batch
SETTINGS = overrides(
    run={"name": "synchronous", "root": ".", "steps": STEPS, "seed": 2},
    rollout={"group_size": GROUP_SIZE, "temperature": 0.9, "max_turn_tokens": 24, "max_tokens": 384},
    env={"max_turns": 2},
    eval={"limit": 1},
    actor={"count": 2, "engine": "torch"},
    replay={"policy": "none", "max_lag": 0, "port": 0},
    search={"port": 0},
    # two optimiser steps a step: the second mini-batch is trained off its reference
    learner={"batch": BATCH, "mini_batch": 2, "lr": LR, "weight_decay": 0.1, "grad_clip": GRAD_CLIP}
    | {"clip_low": CLIP, "clip_high": CLIP}
    | {"checkpoint_every": 1, "keep_last": STEPS},
)


def test_three_steps_through_all_services_give_the_weights_of_the_plain_algorithm(
    start: Start, folder: Path, policy: Path
) -> None:
    command = start("up", str(ATLAS.parent / "atlas.toml"), f"--model.path={policy}", *SETTINGS)
    assert command.wait(400) == 0, command.said
    run_dir = folder / "synchronous"
    config = load(run_dir / "config.toml")
    with retriever(config, run_dir) as search:
        steps = reference_trainer.train(settings_of(config), policy, Path(config.data.train), search)

    events = read_records(run_dir / "metrics.jsonl")
    assert [e["step"] for e in events] == list(range(STEPS))
    assert all(e["lag_max"] == 0 for e in events)
    start_weights = load_file(policy / "model.safetensors")
    for number, (step, event) in enumerate(zip(steps, events, strict=True)):
        rewards = [r for group in step.rewards for r in group]
        assert event["reward_mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert event["tokens_sampled"] == step.tokens
        after = load_file(run_dir / "checkpoints" / f"step_{number + 1}" / "model.safetensors")
        assert after.keys() == start_weights.keys() == step.weights.keys()
        assert difference(after, step.weights) < BOUND, f"after step {number}"
    # otherwise the comparison would hold for any advantage, any clip, any gradient
    assert sum(0 < sum(group) < len(group) for step in steps for group in step.rewards) >= 2
    assert difference(steps[-1].weights, start_weights) > 30 * BOUND
    assert sum(step.clipped for step in steps) > 0


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest over all parameters."""
    return max((a[name] - b[name]).abs().max().item() for name in a)


def settings_of(c: Config) -> reference_trainer.Settings:
    """The reference's settings from the resolved configuration."""
    assert c.learner.clip_low == c.learner.clip_high
    return reference_trainer.Settings(
        seed=c.run.seed,
        steps=c.run.steps,
        batch=c.learner.batch,
        mini_batch=c.learner.mini_batch,
        group_size=c.rollout.group_size,
        temperature=c.rollout.temperature,
        max_turns=c.env.max_turns,
        max_turn_tokens=c.rollout.max_turn_tokens,
        max_tokens=c.rollout.max_tokens,
        lr=c.learner.lr,
        betas=(c.learner.beta1, c.learner.beta2),
        weight_decay=c.learner.weight_decay,
        grad_clip=c.learner.grad_clip,
        clip=c.learner.clip_low,
    )


@contextmanager
def retriever(config: Config, run_dir: Path) -> Iterator[reference_trainer.Search]:
    """The run's own retriever over the run's own index, started alone."""
    address = urlsplit(config.env.url)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "services.env_search"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HEADRACE_CONFIG": str(run_dir / "config.toml")},
    )
    try:
        with httpx.Client(base_url=f"http://{address.netloc}", trust_env=False) as client:
            wait_for(client, process)

            def search(query: str) -> list[dict[str, str]]:
                request = {"queries": [query], "topk": config.env.topk, "return_scores": True}
                answer = client.post("/retrieve", json=request).raise_for_status().json()
                return [hit["document"] for hit in answer["result"][0]]

            yield search
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Until the retriever answers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.get("/health").raise_for_status()
            return
        except httpx.HTTPError:
            assert process.poll() is None and time.monotonic() < deadline, "the retriever does not answer"
            time.sleep(0.1)
