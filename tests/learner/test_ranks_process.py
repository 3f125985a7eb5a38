"""`python -m services.learner` with two ranks: one learner to everybody else, also when a rank is killed."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from services.learner.assemble import assemble
from services.learner.groups.group import group_from_payload
from services.learner.step import train_step
from services.learner.stop import Stop
from services.learner.weights.version_files import write_model
from shared import streams, weights
from shared.messages import Batch, Checkpointed, Finish, Hello, Scan, ScanResult, Trained, WeightsNotice, decode
from shared.streams import FIELD
from tests.learner.test_process import KEYS, Process, config_of, processes, store
from tests.tiny_model import CONTEXT, VOCABULARY

__all__ = ["processes"]
BATCHES = [([], ["0a", "0b"]), (["0a"], ["1a", "gone", "1b"]), (["1b"], ["2a", "2b"])]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alone(config: Any, make_payload: Any, folder: Path) -> dict[str, Any]:
    """The weights that one process makes of the same batches."""
    trainer = assemble(config, Stop()).trainer
    groups = {}
    for i, id in enumerate(f"{s}{x}" for s in range(3) for x in "ab"):
        payload = make_payload(id, i)
        groups[id] = group_from_payload(payload, VOCABULARY, CONTEXT)
    for step, (replay, fresh) in enumerate(BATCHES):
        train_step(trainer, step, [groups[id] for id in replay], [groups[id] for id in fresh if id != "gone"])
    folder.mkdir()
    write_model(trainer.model, {}, folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_are_one_learner_and_a_killed_rank_loses_nothing(
    tmp_path: Path, policy_dir: Path, redis_url: str, make_payload: Any, processes: list[Process]
) -> None:
    config = config_of(tmp_path, policy_dir, redis_url, ranks=2, checkpoint_every=2, lr=5e-5)
    first = Process(tmp_path, config)
    processes.append(first)
    store(first.client, make_payload, *(f"{s}{x}" for s in range(3) for x in "ab"))
    assert first.next(Hello).version == (0, 0)
    for step, (replay, fresh) in enumerate(BATCHES[:2]):
        if step:
            first.send(Scan(scan="scan", step=step, ids=["0b", "0a"]))
            scanned = first.next(ScanResult)
            assert [r.id for r in scanned.records] == ["0b", "0a"]
        first.send(Batch(step=step, replay=replay, fresh=fresh))
        trained = first.next(Trained)
        used = [id for id in (*replay, *fresh) if id != "gone"]
        assert [r.id for r in trained.records] == used
        assert trained.rejected == (["gone"] if "gone" in fresh else [])
        assert trained.metrics["payload_reads"] + step == len(
            used
        )  # the replayed one is still in the cache of its rank
        assert all(first.client.exists(KEYS.reference(id)) for id in fresh if id != "gone")
        notice = decode(first.client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice)
        assert (notice.version, len(notice.canary)) == (trained.version, 2)
        weights.verify(config.weights_dir / notice.location, notice.digest)
    assert first.next(Checkpointed).step == 2

    leader, other = children(first.popen.pid)
    first.send(Batch(step=2, replay=BATCHES[2][0], fresh=BATCHES[2][1]))
    os.kill(other, signal.SIGKILL)
    assert first.wait(30) == 1
    assert not Path(f"/proc/{leader}").exists()
    assert "rank 1 ended" in first.log.read_text()

    second = Process(tmp_path, config)
    processes.append(second)
    second.last = first.last
    assert second.next(Hello).version == (1, 2)
    assert second.next(Trained).version == (1, 3)
    second.send(Finish())
    while second.next(Checkpointed).step < 3:
        pass
    assert second.wait(60) == 0
    assert second.client.xlen(KEYS.work) == 0
    assert streams.saved_key(KEYS) and int(second.client.get(streams.saved_key(KEYS))) == 3

    single = config.model_copy(
        update={
            "learner": config.learner.model_copy(update={"ranks": 1}),
            "run": config.run.model_copy(update={"root": str(tmp_path / "alone")}),
        }
    )
    expected = alone(single, make_payload, tmp_path / "expected")
    before = load_file(policy_dir / "model.safetensors")
    found = load_file(config.checkpoints_dir / "step_3" / "model.safetensors")
    assert max(float(np.abs(found[name] - before[name]).max()) for name in before) > 1e-4
    assert max(float(np.abs(found[name] - expected[name]).max()) for name in expected) < 1e-6
