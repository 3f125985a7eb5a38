"""A tiny real policy with TIED embeddings, groups it really sampled, and a learner's parts around them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import torch
import torch.distributed as dist

from services.learner.clock import Clock
from services.learner.groups.group import Group, group_from_payload
from services.learner.model.optimise import Optimiser
from services.learner.model.policy import load_policy
from services.learner.ranks.members import Ranks
from services.learner.ranks.sharded import load_sharded
from services.learner.step import Trainer
from services.learner.stop import Stop
from shared import streams
from shared.advantages import group_advantages
from shared.config import Config, build
from shared.messages import Batch, Message, encode
from shared.payload import Payload, encode_payload
from shared.settings import Learner
from tests.learner.fed import KEYS, Feed
from tests.tiny_model import CONTEXT, VOCABULARY, write_model

RUN = "test"

MakePayload = Callable[..., Payload]
MakeGroup = Callable[..., Group]
MakeTrainer = Callable[..., Trainer]


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model folder: the tests' tiny policy, tied, its tokenizer, a generation config."""
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("policy"), seed=1)


@pytest.fixture
def model(policy_dir: Path) -> Any:
    """A fresh copy of the policy, as the learner loads it."""
    return load_policy(policy_dir, torch.float32, torch.device("cpu"))


@pytest.fixture
def sharded(policy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The policy in shards, all of which one rank holds."""
    dist.init_process_group("gloo", f"file://{tmp_path_factory.mktemp('ranks')}/met", rank=0, world_size=1)
    ranks = Ranks(group=dist.group.WORLD)
    yield load_sharded(policy_dir, torch.float32, torch.device("cpu"), ranks, packed=True)
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def make_payload(policy_dir: Path) -> MakePayload:
    """Sample a group from the policy: ragged, two turns with "retrieved" tokens between them that are masked out."""
    sampler = load_policy(policy_dir, torch.float32, torch.device("cpu"))

    sampled: dict[tuple, Payload] = {}  # sampling is the slow part of these tests

    def sample(prefix: list[int], count: int, generator: torch.Generator) -> tuple[list[int], list[float]]:
        ids, scores = list(prefix), []
        for _ in range(count):
            with torch.no_grad():
                lp = torch.log_softmax(sampler(torch.tensor([ids])).logits[0, -1].float(), -1)
            ids.append(int(torch.multinomial(lp.exp(), 1, generator=generator)))
            scores.append(float(lp[ids[-1]]))
        return ids[len(prefix) :], scores

    def make(
        id: str,
        seed: int,
        rewards: list[float | None] | None = None,
        version: tuple[int, int] = (0, 0),
    ) -> Payload:
        rewards = [1.0, 0.0, 0.0, 1.0] if rewards is None else rewards
        key = (seed, tuple(rewards), version)
        if key not in sampled:
            sampled[key] = fresh(seed, rewards, version)
        return replace(sampled[key], id=id)

    def fresh(seed: int, rewards: list[float | None], version: tuple[int, int]) -> Payload:
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        prompt = rng.integers(3, VOCABULARY, rng.integers(3, 9)).tolist()
        tokens, mask, scores, lengths, turns = [], [], [], [], []
        for i, reward in enumerate(rewards):
            first, l_first = sample(prompt, int(rng.integers(1, 7)), generator)
            found = rng.integers(3, VOCABULARY, rng.integers(0, 6)).tolist()
            second, l_second = sample([*prompt, *first, *found], int(rng.integers(1, 9)), generator)
            rollout = [*first, *found, *second]
            keep = reward is not None
            mask += [keep] * len(first) + [False] * len(found) + [keep] * len(second)
            scores += (l_first + l_second) if keep else []
            turns += [[i, 0, len(first)], [i, len(first) + len(found), len(rollout)]]
            lengths.append(len(rollout))
            tokens += rollout
        return Payload(
            id="",
            run=RUN,
            prompt=np.array(prompt, np.int32),
            lengths=np.array(lengths, np.int32),
            tokens=np.array(tokens, np.int32),
            mask=np.array(mask),
            l_gen=np.array(scores, np.float32),
            advantages=group_advantages(rewards),
            version_runs=np.array([[len(scores), *version]], np.int32),
            turns=np.array(turns, np.int32),
            documents=[[] for _ in rewards],
        )

    return make


@pytest.fixture(scope="session")
def make_group(make_payload: MakePayload) -> MakeGroup:
    """The same, as the learner holds it; `stored` sets l_ref to l_gen plus noise of this size."""

    def make(id: str, seed: int, stored: float | None = None, **kwargs: Any) -> Group:
        payload = make_payload(id, seed, **kwargs)
        group = group_from_payload(payload, VOCABULARY, CONTEXT)
        if stored is None:
            return group
        noise = torch.randn(group.tokens, generator=torch.Generator().manual_seed(seed)) * stored
        return replace(group, l_ref=(group.l_gen + noise).clamp(max=0.0))

    return make


@pytest.fixture
def make_trainer() -> MakeTrainer:
    """A trainer around a model; keyword arguments are learner settings."""

    def make(model: Any, steps: int = 10, frozen: Any = None, **kwargs: Any) -> Trainer:
        settings = Learner.model_validate({"lr": 1e-3} | kwargs)
        optimiser = Optimiser(model.parameters(), settings, steps)
        return Trainer(model, frozen, optimiser, settings, 1.0, Clock(), Stop())

    return make


@pytest.fixture
def client(redis_url: str) -> Any:
    """The tests' Redis."""
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def config(tmp_path: Path, policy_dir: Path, redis_url: str) -> Config:
    """Of a short run: batches of two, a checkpoint every other step."""
    return build(
        {
            "run": {"name": "test", "root": str(tmp_path), "steps": 20},
            "model": {"path": str(policy_dir)},
            "learner": {"batch": 2, "lr": 1e-2, "threads": 1, "device": "cpu", "checkpoint_every": 2},
            "replay": {"select": 1, "tau": 1e-2},
            "redis": {"url": redis_url},
        }
    )


@pytest.fixture
def feed(client: Any, make_payload: Any) -> Feed:
    """Put a message on `work`, and the payloads it names into Redis where they are missing."""

    def put(message: Message) -> None:
        if isinstance(message, Batch):
            for i, id in enumerate([*message.replay, *message.fresh]):
                payload = make_payload(id, (message.step + i) % 5, version=(0, message.step))
                client.set(KEYS.payload(id), encode_payload(payload), nx=True)
        streams.add(client, KEYS.work, encode(message))

    return put
