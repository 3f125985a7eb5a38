"""The learner is killed at each of its writes in turn, to Redis and disk, or loses a reply: the same bits come out."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import torch

from services.learner import loop
from services.learner.loop import Loop
from services.learner.stop import Stop
from services.learner.weights import checkpoint
from shared import streams, weights
from shared.config import Config, build
from shared.messages import Batch, Checkpointed, Cursor, Finish, Hello, Result, Scan, Trained, decode, encode
from shared.payload import encode_payload
from shared.redis_client import connect
from shared.streams import FIELD, Keys
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

    Its groups are `lag` versions old, the end of each one version less.
    """

    def __init__(self, folder: Path, policy: Path, client: Any, url: str, make_payload: Any, lag: int = 0) -> None:
        self.client = client
        client.flushall()
        self.config: Config = build(
            {
                "run": {"name": "test", "root": str(folder), "steps": STEPS},
                "model": {"path": str(policy)},
                "learner": {"batch": 2, "lr": 1e-2, "threads": 1, "device": "cpu", "checkpoint_every": 2},
                "replay": {"select": 1, "tau": 1e-2, "max_lag": lag},
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

    def trains(self, death: Death, patch: pytest.MonkeyPatch) -> dict[str, bytes]:
        """One life with this death in it, and another after it; the bits that the run ends with."""
        with patch.context() as at_first:
            at_first.setattr(loop, "connect", lambda url: mortal(connect(url), death))
            mortal_files(at_first, self.config.run_dir, lambda: death)
            with suppress(Killed):
                self._live()
        if death.dead:
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


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("lost", [False, True], ids=["killed", "reply_lost"])
def test_at_every_write_the_run_ends_with_the_same_bits(
    tmp_path: Path,
    policy_dir: Path,
    client: Any,
    redis_url: str,
    make_payload: Any,
    monkeypatch: pytest.MonkeyPatch,
    lost: bool,
    lag: int,
) -> None:
    monkeypatch.setattr("services.learner.talk.patience.RETRY_S", 0.01)

    def life(name: str) -> Life:
        return Life(tmp_path / name, policy_dir, client, redis_url, make_payload, lag)

    unharmed, whole = life("unharmed"), Death(0)
    bits = unharmed.trains(whole, monkeypatch)
    unharmed.check(again=False)
    kinds: set[str] = set()
    # with a lag they are the same writes in the same order, so each kind is struck twice and not always
    places = first_and_last([write if write.startswith("MULTI") else write.split()[0] for write in whole.writes])
    some = [Death(at, lost=lost) for at in places]
    for death in some if lag else deaths(lost=lost):
        one = life(str(death.at))
        assert one.trains(death, monkeypatch) == bits, f"{death.at}: {death.where}"
        one.check(again=lost)
        kinds.add(death.where.split()[0] if death.where else "")
    assert kinds >= {"MULTI", "INCRBY", "SET"} | (set() if lost else {"rename", "symlink", "replace", "rmtree"})
