"""A learner's half and an actor's half around a real Redis, and versions of a model whose values moved a little."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from services.actor.transports.redis_chunks import RedisReceiver
from services.actor.wire import Wire
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights.transports.redis_chunks import RedisSender
from shared import weights
from shared.config import Config, build
from shared.messages import WeightsNotice
from shared.redis_client import connect
from shared.streams import Keys
from shared.transports import chunks
from shared.versions import Version

Publish = Callable[..., tuple[WeightsNotice, Path]]
KEYS = Keys("sent")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 10_000)


@pytest.fixture
def config(tmp_path: Path, redis_url: str) -> Config:
    run = {"name": "sent", "root": str(tmp_path)}
    return build({"run": run, "weights": {"dir": str(tmp_path / "weights")}, "redis": {"url": redis_url}})


@pytest.fixture
def outbox(redis_url: str) -> Iterator[Outbox]:
    with connect(redis_url) as client:
        yield Outbox(client, KEYS, Stop())


@pytest.fixture
def sender(outbox: Outbox) -> RedisSender:
    return RedisSender(outbox, Stop(), delta=True)


@pytest.fixture
async def receiver(config: Config, tmp_path: Path) -> AsyncIterator[RedisReceiver]:
    wire = Wire(config)
    yield RedisReceiver(wire, tmp_path / "received")
    await wire.client.aclose()


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """Write version 0.<number>, whose values differ from those of the one before by `step` at most."""
    start = torch.randn(40_000, generator=torch.Generator().manual_seed(0)) * 0.02

    def version(number: int, step: float = 1e-5, dtype: torch.dtype = torch.bfloat16) -> tuple[WeightsNotice, Path]:
        weight = start.clone()
        for i in range(number):
            weight += step * torch.randn(len(start), generator=torch.Generator().manual_seed(i + 1))

        def write(folder: Path) -> None:
            save_file({"w": weight.to(dtype)}, folder / "model.safetensors", {"format": "pt"})
            (folder / "config.json").write_text("{}")
            (folder / "empty.txt").write_text("")

        named = Version(0, number)
        folder, digest, size = weights.publish(tmp_path / "weights", named, write)
        return WeightsNotice(
            version=named, location=folder.name, digest=digest, size=size, published=0.0, canary=[]
        ), folder

    return version


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fields that were fetched."""
    fields: list[str] = []
    get = RedisReceiver._get

    async def noted(self: RedisReceiver, notice: WeightsNotice, field: str) -> bytes | None:
        fields.append(field)
        return await get(self, notice, field)

    monkeypatch.setattr(RedisReceiver, "_get", noted)
    return fields
