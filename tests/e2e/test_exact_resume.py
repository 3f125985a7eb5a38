"""Killed and resumed, a synchronous run ends with the bits of one that was not: weights, optimiser, buffer, counts."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil
import pytest
import torch

from cli.run.local_redis import stored_url
from cli.run.recorder import read_records
from services.replay.records import Counters
from shared.streams import Keys
from tests.e2e.command import ATLAS, STOP_S, Command, overrides
from tests.e2e.conftest import Start
from tests.e2e.test_interrupt import stored_state

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS, BATCH = 9, 4
START_S, STEP_S, RUN_S = 600, 300, 900
OF_TIME = {"started", "duplicates"}  # a group that two lives of an actor stored counts as one duplicate


def words(policy: Path, name: str) -> list[str]:
    """A run in which nothing depends on timing: lag 0, rows alone, retries that outlast a retriever's restart."""
    settings = overrides(
        run={"name": name, "root": ".", "steps": STEPS, "seed": 3},
        rollout={"group_size": 4, "deadline_s": 300},
        env={"retries": 60},
        eval={"limit": 4, "every": 4},
        actor={"count": 2, "engine": "torch", "exact": True, "groups": 2},
        replay={"policy": "headroom_drift", "max_lag": 0, "select": 2, "capacity": 8, "tau": 1.0, "port": 0},
        search={"port": 0},
        learner={"batch": BATCH, "mini_batch": 2, "checkpoint_every": 3, "keep_last": 9},
    )
    return ["up", str(ATLAS.parent / "atlas.toml"), f"--model.path={policy}", *settings]


def test_a_run_that_is_killed_in_every_part_ends_with_the_bits_of_one_that_is_not(
    start: Start, folder: Path, policy: Path
) -> None:
    left_alone = start(*words(policy, "calm"))
    assert left_alone.wait(RUN_S) == 0, left_alone.said

    command = start(*words(policy, "hurt"))
    for name, after in (("learner", 1), ("actor", 2), ("replay", 3), ("redis", 4), ("env_search", 5)):
        command.wait_until(trained(folder / "hurt", after), f"step {after}", START_S)
        kill(command, name, folder / "hurt")
    command.wait_until(trained(folder / "hurt", 6), "step 6", STEP_S)
    command.signal(signal.SIGKILL)
    command.process.wait()
    command.assert_gone(STOP_S)

    again = start("up", "--resume", "hurt")
    again.wait_until(trained(folder / "hurt", 7), "step 7", START_S)
    again.kill()  # every process: a learner that outlives its command saves where it is
    assert not (folder / "hurt" / "checkpoints" / "step_7").exists()

    third = start("up", "--resume", "hurt")
    third.wait_until(trained(folder / "hurt", 8), "step 8", START_S)
    kill(third, "learner", folder / "hurt")
    assert third.wait(RUN_S) == 0, third.said

    whole, killed = (ending(folder / name) for name in ("calm", "hurt"))  # of one length: payloads hold them
    assert killed["lineages"] >= 3 > whole["lineages"]
    assert sum(line["replay"] != [] for line in whole["ledger"]) > STEPS / 2, "replay is part of it"
    gates = [line["acceptance"] for line in read_records(folder / "calm" / "metrics.jsonl") if line["scanned"]]
    assert 0 < min(gates) < 1, "and so is the gate"
    for part in ("ledger", "counters", "buffer"):
        assert repr(killed[part]) == repr(whole[part]), part  # a group that was never scanned has no number for Drift
    assert_same_bits(whole["state"], killed["state"], "trainer_state")
    assert killed["weights"] == whole["weights"]


def trained(run_dir: Path, steps: int) -> Callable[[], bool]:
    """Whether so many steps are recorded."""
    return lambda: len(read_records(run_dir / "metrics.jsonl")) >= steps


def kill(command: Command, name: str, run_dir: Path) -> None:
    """kill -9, and another process in its place."""

    def now() -> psutil.Process | None:
        return command.service(name) if name != "redis" else redis_of(run_dir)

    victim = now()
    assert victim is not None, f"no {name}"
    victim.kill()

    def is_back() -> bool:
        found = now()
        return found is not None and found.pid != victim.pid

    command.wait_until(is_back, f"new {name}", STEP_S)


def redis_of(run_dir: Path) -> psutil.Process | None:
    """The run's own server, which writes its address over its environment."""
    address = f"127.0.0.1:{urlsplit(stored_url(run_dir) or '').port}"
    servers = (p for p in psutil.process_iter(["cmdline"]) if p.status() != psutil.STATUS_ZOMBIE)
    return next((p for p in servers if address in " ".join(p.info["cmdline"] or []).split()), None)


def ending(run_dir: Path) -> dict[str, Any]:
    """What a finished run has come to, without what depends on time."""
    keys = Keys(run_dir.name)
    checkpoint = run_dir / "checkpoints" / f"step_{STEPS}"
    with stored_state(run_dir) as client:
        ledger = [msgspec.json.decode(line) for line in client.lrange(keys.prefix + "replay:ledger", 0, -1)]
        counters = msgspec.to_builtins(msgspec.json.decode(client.get(keys.state), type=Counters))
        rows = [msgspec.msgpack.decode(row) for row in client.hgetall(keys.prefix + "replay:buffer").values()]
        lineages = int(client.get(keys.prefix + "lineage"))
    return {
        "lineages": lineages,
        "ledger": [{k: v for k, v in line.items() if k not in ("time", "version")} for line in ledger],
        "counters": {k: v for k, v in counters.items() if k not in OF_TIME | {"version"}},
        "buffer": sorted(rows, key=lambda row: row["sequence"]),
        "weights": (checkpoint / "model.safetensors").read_bytes(),
        "state": torch.load(checkpoint / "trainer_state.pt", weights_only=True),
    }


def assert_same_bits(a: Any, b: Any, where: str) -> None:
    """Equal in every tensor and number, but for the lineage."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a.keys() - {"lineage"}:
            assert_same_bits(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for place, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_bits(x, y, f"{where}[{place}]")
    else:
        assert a == b, where
