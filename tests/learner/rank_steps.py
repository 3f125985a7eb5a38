"""What the ranks do in test_ranks.py: load the policy or a checkpoint, train steps of given groups, save.

    python rank_steps.py PLANS     a JSON list of plans, done one after the other

Imports take most of the time, so ranks are forks of this process, each with the environment torchrun would give it.
"""

import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import peft  # noqa: F401, here and not in every fork
import pytest
import torch

from services.learner.assemble import assemble
from services.learner.groups.group import Group, group_from_payload
from services.learner.model.batching import mini_batches
from services.learner.model.optimise import Optimiser
from services.learner.model.policy import logprobs
from services.learner.ranks import members as ranks_
from services.learner.ranks.balance import Load, owners
from services.learner.ranks.keeping import save_checkpoint
from services.learner.step import scan, train_step
from services.learner.stop import Stop
from services.learner.weights.room import is_for_want_of_room
from services.learner.weights.version_files import write_model
from shared.config import build
from shared.payload import decode_payload
from shared.versions import Version
from tests.tiny_model import CONTEXT, VOCABULARY


@dataclass(frozen=True)
class Plan:
    """`groups`: a folder with `<step>-<n>-<old|new>.bin`, payloads; `out`: where the weights after the last step go."""

    ranks: int
    config: dict[str, Any]
    groups: str
    first: int
    last: int
    save_at: int
    out: str
    bad_at: int = -1  # the step whose first gradient is not finite, in the last rank's part of it
    blocked: bool = False  # rank 0 cannot make its folders at first


def groups_of(folder: Path, step: int, kind: str) -> list[Group]:
    out = []
    for file in sorted(folder.glob(f"{step}-*-{kind}.bin")):
        data = file.read_bytes()
        group = group_from_payload(decode_payload(data, "test"), VOCABULARY, CONTEXT)
        if kind == "old":
            noise = torch.randn(group.tokens, generator=torch.Generator().manual_seed(step)) * 0.05
            group.l_ref = (group.l_gen + noise).clamp(max=0.0)
        out.append(group)
    return out


def spoil_next_gradient(optimiser: Optimiser, *, here: bool) -> None:
    accumulate = optimiser.accumulate

    def spoilt() -> None:
        accumulate()
        for master in optimiser.masters if here else []:
            assert master.grad is not None
            master.grad.mul_(torch.nan)
        optimiser.accumulate = accumulate

    optimiser.accumulate = spoilt


def save_in_vain(save: Callable[[], None], root: Path, step: int, *, leads: bool) -> None:
    """Files lie where rank 0 wants to make a folder, of shards and of the model; then the shards have no room."""
    root.mkdir(parents=True, exist_ok=True)
    for name in (f".shards-step_{step}", f".step_{step}.{os.getpid()}"):
        if leads:
            (root / name).touch()
            with pytest.raises(FileExistsError):
                save()
            (root / name).unlink()
        else:
            save()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # what a write is then told is EFBIG
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    if leads:
        with pytest.raises(Exception) as error:
            save()
        assert is_for_want_of_room(error.value, root)
    else:
        save()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def train(plan: Plan) -> None:
    config = build(plan.config)
    ranks = ranks_.join(torch.device("cpu"))
    made = assemble(config, Stop(), ranks)
    trainer = made.trainer
    assert made.step == plan.first, (made.step, plan.first)
    report: list[Any] = []
    for step in range(plan.first, plan.last):
        old, new = groups_of(Path(plan.groups), step, "old"), groups_of(Path(plan.groups), step, "new")
        place = owners([Load(g.id, g.bytes) for g in [*old, *new]], config.learner.mini_batch, ranks.count)
        mine = [[g for g in groups if place[g.id] == ranks.rank] for groups in (old, new)]
        cuts = mini_batches([*old, *new], config.learner.mini_batch)
        batches = [[g for g in cut if place[g.id] == ranks.rank] for cut in cuts]
        scanned = scan(trainer, mine[0])
        if step == plan.bad_at:
            spoil_next_gradient(trainer.optimiser, here=ranks.rank == ranks.count - 1)
        records, totals = train_step(trainer, step, *mine, batches=batches if ranks.count > 1 else None)
        report.append([[r.id, r.drift, r.headroom] for r in (*scanned, *records)] + [["norm", *totals.norms]])
        if step + 1 == plan.save_at:
            save = partial(
                save_checkpoint, config.checkpoints_dir, trainer, made.companions, Version(0, step + 1), None
            )
            if plan.blocked:
                save_in_vain(save, config.checkpoints_dir, step + 1, leads=ranks.leads)
            save()
    out = Path(plan.out)
    out.mkdir(parents=True, exist_ok=True)
    write_model(trainer.model, made.companions if ranks.leads else {}, out)
    reports = ranks.all(msgspec.msgpack.encode(report))
    row = groups_of(Path(plan.groups), plan.first, "new")[0].rows[0]
    with torch.no_grad():
        logp = logprobs(trainer.model, [row], 1.0).tolist()
    held = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in trainer.model.parameters())
    if ranks.leads:
        found = {"report": [msgspec.msgpack.decode(r) for r in reports], "logp": logp, "held": held}
        (out / "report.json").write_text(json.dumps(found))


def fork(plan: Plan, rank: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ |= {"WORLD_SIZE": str(plan.ranks), "RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        train(plan)
        status = 0
    except Exception:  # noqa: BLE001, the fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    torch.set_num_threads(1)
    for plan in (Plan(**p) for p in json.loads(Path(sys.argv[1]).read_text())):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = [fork(plan, rank, port) for rank in range(plan.ranks)]
        while children:
            child, status = os.wait()
            children.remove(child)
            if status:
                for other in children:
                    os.kill(other, signal.SIGKILL)
                raise SystemExit(1)


if __name__ == "__main__":
    main()
