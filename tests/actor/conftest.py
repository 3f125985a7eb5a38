"""Tiny models, published versions of them, configurations that use them, and whole actors."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import torch
from transformers import AutoModelForCausalLM

from services.actor.engines.engine import Engine
from shared import weights
from shared.config import Config, build
from shared.messages import CanarySequence, WeightsNotice
from shared.redis_client import connect
from shared.versions import Version
from tests import tiny_model
from tests.actor.running import REPOSITORY, ActorThread, free_port, start_search

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model every actor starts from (seed 0, tied embeddings)."""
    return tiny_model.write_model(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture
def make_config(model_dir: Path, tmp_path: Path) -> Callable[..., Config]:
    """A configuration; keyword arguments are sections with settings to change."""

    def make(**sections: dict) -> Config:
        tree: dict = {
            "run": {"name": "test", "root": str(tmp_path)},
            "model": {"path": str(model_dir)},
            "env": {"prompt": "plain", "topk": 1, "max_turns": 2, "max_observation_tokens": 40, "timeout_s": 2.0},
            "rollout": {"max_tokens": 200, "max_prompt_tokens": 60, "max_turn_tokens": 20, "deadline_s": 30.0},
            "actor": {"engine": "torch", "groups": 4, "threads": 1, "heartbeat_s": 0.3},
        }
        for section, values in sections.items():
            tree.setdefault(section, {}).update(values)
        return build(tree)

    return make


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., tuple[WeightsNotice, Path]]:
    """Publish the tiny model with another seed as a version; returns its notice and directory."""

    def publish_version(
        number: int, seed: int, *, root: Path | None = None, canary_seed: int | None = None, tied: bool = True
    ) -> tuple[WeightsNotice, Path]:
        root = root or tmp_path / "test" / "weights"
        version = Version(0, number)
        path, digest, size = weights.publish(root, version, lambda d: tiny_model.write_model(d, seed, tied) and None)
        truth = tiny_model.build_model(seed if canary_seed is None else canary_seed, tied)
        canary = [canary_of(truth, [3, *range(14, 14 + n), 4], start=2) for n in (5, 20)]
        notice = WeightsNotice(
            version=version, location=path.name, digest=digest, size=size, published=time.time(), canary=canary
        )
        return notice, path

    return publish_version


@torch.no_grad()
def canary_of(model: torch.nn.Module, tokens: list[int], start: int) -> CanarySequence:
    logp = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    wanted = [logp[i - 1, tokens[i]].item() for i in range(start, len(tokens))]
    return CanarySequence(tokens=tokens, start=start, logprobs=wanted)


@pytest.fixture
def full_logprobs() -> Callable[[Path, list[int], int, float], list[float]]:
    """Log-probabilities of tokens[start:] by one plain forward of the model in a directory."""

    @torch.no_grad()
    def compute(directory: Path, tokens: list[int], start: int, temperature: float = 1.0) -> list[float]:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        logits = model(torch.tensor([tokens])).logits[0].double() / temperature
        logp = logits.log_softmax(-1)
        return [logp[i - 1, tokens[i]].item() for i in range(start, len(tokens))]

    return compute


@pytest.fixture(scope="module")
def search_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running env_search over one passage per letter."""
    port = free_port()
    process = start_search(tmp_path_factory.mktemp("search"), port)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def start_actor() -> Iterator[Callable[..., ActorThread]]:
    """Start actors; each must still run at the end of the test, and stops then."""
    actors: list[ActorThread] = []

    def start(config: Config, engine: Engine | None = None) -> ActorThread:
        actors.append(ActorThread(config, engine))
        return actors[-1]

    yield start
    for actor in actors:
        actor.stop()
    assert [actor.error for actor in actors] == [None] * len(actors)


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[[Config], subprocess.Popen]]:
    """Start `python -m services.actor`."""
    processes: list[subprocess.Popen] = []

    def start(config: Config) -> subprocess.Popen:
        path = tmp_path / "actor.toml"
        path.write_text(config.to_toml())
        env = os.environ | {"HEADRACE_CONFIG": str(path), "HEADRACE_REDIS__URL": config.redis.url}
        process = subprocess.Popen([sys.executable, "-m", "services.actor"], env=env, cwd=REPOSITORY)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(10)
