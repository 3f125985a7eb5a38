"""The learner is killed at each of its writes in turn, to Redis and disk, or loses a reply: the same bits come out."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import torch

from services.actor.transports.redis_chunks import RedisReceiver
from services.actor.wire import Wire
from services.learner import loop
from services.learner.loop import Loop
from services.learner.stop import Stop
from services.learner.weights import checkpoint
from shared import streams, weights
from shared.config import Config, build
from shared.messages import (
    Batch,
    Checkpointed,
    Cursor,
    Finish,
    Hello,
    Result,
    Scan,
    Trained,
    WeightsNotice,
    decode,
    encode,
)
from shared.payload import encode_payload
from shared.redis_client import connect
from shared.streams import FIELD, Keys
from shared.transports import chunks
from shared.versions import Version
from tests.crashing import Death, Killed, deaths, first_and_last, mortal, mortal_files

KEYS = Keys("test")
STEPS = 3
WORK = [
    Batch(step=0, replay=[], fresh=["0a", "0b"], cursor=Cursor(issued=2, lost=0, refilled=0, untrained=[])),
    Scan(scan="s1", step=1, ids=["0a", "0b"]),
    Batch(step=1, replay=["0b"], fresh=["1a", "1b"], cursor=Cursor(issued=4, lost=0, refilled=0, untrained=[])),
    Batch(step=2, replay=["1a", "0a"], fresh=["2a", "2b"], cursor=Cursor(issued=6, lost=0, refilled=0, untrained=[])),
    Finish(),
]


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


class Life:
    """A learner with three steps to train, saved after the second and the third, in a folder of its own.

    Its groups are `lag` versions old, the end of each one version less; `transport` is how its weights travel.
    """

    def __init__(
        self, folder: Path, policy: Path, client: Any, url: str, make_payload: Any, lag: int, transport: str
    ) -> None:
        self.client = client
        client.flushall()
        self.config: Config = build(
            {
                "run": {"name": "test", "root": str(folder), "steps": STEPS},
                "model": {"path": str(policy)},
                "learner": {"batch": 2, "lr": 1e-2, "threads": 1, "device": "cpu", "checkpoint_every": 2},
                "replay": {"select": 1, "tau": 1e-2, "max_lag": lag},
                "weights": {"transport": transport},
                "redis": {"url": url},
            }
        )
        for seed, id in enumerate(id for work in WORK if isinstance(work, Batch) for id in work.fresh):
            payload, step = make_payload(id, seed), int(id[0])
            tokens = len(payload.l_gen)
            runs = [[tokens - 1, 0, max(0, step - lag)], [1, 0, step]] if lag else payload.version_runs
            client.set(KEYS.payload(id), encode_payload(replace(payload, version_runs=np.array(runs, np.int32))))
        for work in WORK:
            streams.add(client, KEYS.work, encode(work))

    def trains(
        self, death: Death, patch: pytest.MonkeyPatch, between: Callable[[], object] = lambda: None
    ) -> dict[str, bytes]:
        """One life with this death in it, and another after it; the bits that the run ends with."""
        with patch.context() as at_first:
            at_first.setattr(loop, "connect", lambda url: mortal(connect(url), death))
            mortal_files(at_first, self.config.run_dir, lambda: death)
            with suppress(Killed):
                self._live()
        if death.dead:
            between()
            self._live()
        folder, _ = checkpoint.newest(self.config.checkpoints_dir) or (None, None)
        assert folder is not None and folder.name == f"step_{STEPS}"
        state = torch.load(folder / checkpoint.STATE, weights_only=True)
        moments = [value for one in state["optimiser"]["adamw"]["state"].values() for value in one.values()]
        references = {key: self.client.get(KEYS.reference(key)) for key in ("0a", "0b", "1a", "1b", "2a", "2b")}
        return {
            "weights": (folder / "model.safetensors").read_bytes(),
            "optimiser": b"".join(moment.numpy().tobytes() for moment in moments),
            **references,
        }

    def _live(self) -> None:
        life = Loop(self.config, Stop())
        try:
            life.run()
        finally:
            life.client.close()

    def check(self, again: bool) -> None:
        """What replay and the actors see of it; `again`: a word may have been said twice."""
        said = [decode(fields[FIELD], Result) for _, fields in self.client.xrange(KEYS.results)]
        trained = [(r.version, r.records) for r in said if isinstance(r, Trained)]
        told = dict(trained)
        assert again or len(told) == len(trained), "no step twice in one life"
        assert sorted({version.number for version in told}) == [1, 2, 3]
        for version, records in told.items():  # trained again by another life, it is the same to the last digit
            assert records == next(r for v, r in told.items() if v.number == version.number)
        assert [r.step for r in said if isinstance(r, Checkpointed)][-1] == STEPS
        newest = max(r.version for r in said if isinstance(r, Hello | Trained))
        assert weights.published(self.config.weights_dir)[-1] == newest
        assert not self.client.xlen(KEYS.work) and not self.client.xlen(KEYS.dead)
        assert int(self.client.get(streams.saved_key(KEYS))) == STEPS
        hidden = [f.name for folder in ("checkpoints", "weights") for f in (self.config.run_dir / folder).glob(".*")]
        assert not hidden, "nothing half-made is left"
        assert (self.config.checkpoints_dir / checkpoint.LATEST).resolve().name == f"step_{STEPS}"

    def check_sent(self) -> Version | None:
        """The version announced last, which an actor without any receives whole; Redis holds nothing unnamed."""
        names = {name.decode() for name in self.client.smembers(chunks.versions_key(KEYS))}
        stored = {key.decode().rpartition(":")[2] for key in self.client.scan_iter(chunks.key_of(KEYS, "*"))}
        assert stored <= names and len(names) <= 2
        for _, fields in self.client.xrevrange(KEYS.weights, count=1):
            notice = decode(fields[FIELD], WeightsNotice)
            received, there = asyncio.run(self._fetch(notice))
            assert there
            weights.verify(received, notice.digest)
            return notice.version
        return None

    async def _fetch(self, notice: WeightsNotice) -> tuple[Path, bool]:
        wire, received = Wire(self.config), self.config.run_dir / "received"
        shutil.rmtree(received, ignore_errors=True)
        try:
            return await RedisReceiver(wire, received).fetch(notice, None)
        finally:
            await wire.client.aclose()


@pytest.fixture
def life(
    tmp_path: Path,
    policy_dir: Path,
    client: Any,
    redis_url: str,
    make_payload: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Life]:
    """Makes one, in a folder of this name."""
    monkeypatch.setattr("services.learner.talk.patience.RETRY_S", 0.01)

    def make(name: str, lag: int = 0, transport: str = "folder") -> Life:
        return Life(tmp_path / name, policy_dir, client, redis_url, make_payload, lag, transport)

    return make


def kind(write: str) -> str:
    """Of a write: a transaction by all its commands, what is done to a file without its name."""
    return write if write.startswith("MULTI") else write.split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("lost", [False, True], ids=["killed", "reply_lost"])
def test_at_every_write_the_run_ends_with_the_same_bits(
    life: Callable[..., Life], monkeypatch: pytest.MonkeyPatch, lost: bool, lag: int
) -> None:
    unharmed, whole = life("unharmed", lag), Death(0)
    bits = unharmed.trains(whole, monkeypatch)
    unharmed.check(again=False)
    kinds: set[str] = set()
    # with a lag they are the same writes in the same order, so each kind is struck twice and not always
    some = [Death(at, lost=lost) for at in first_and_last([kind(write) for write in whole.writes])]
    for death in some if lag else deaths(lost=lost):
        one = life(str(death.at), lag)
        assert one.trains(death, monkeypatch) == bits, f"{death.at}: {death.where}"
        one.check(again=lost)
        kinds.add(death.where.split()[0] if death.where else "")
    assert kinds >= {"MULTI", "INCRBY", "SET"} | (set() if lost else {"rename", "symlink", "replace", "rmtree"})


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["killed", "reply_lost"])
def test_where_weights_travel_through_redis_the_announced_version_is_there_as_well(
    life: Callable[..., Life], monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 50_000)
    unharmed, whole = life("unharmed", 0, "redis"), Death(0)
    bits = unharmed.trains(whole, monkeypatch)
    assert "MULTI UNLINK SREM" in whole.writes, "an old version is deleted"
    for at in [0, *first_and_last([kind(write) for write in whole.writes])]:
        one, death = life(str(at), 0, "redis"), Death(at, lost=lost)
        assert one.trains(death, monkeypatch, one.check_sent) == bits, f"{at}: {death.where}"
        one.check(again=lost)
        assert one.check_sent() == weights.published(one.config.weights_dir)[-1], f"{at}: {death.where}"
