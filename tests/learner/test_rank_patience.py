"""A rank that hangs or dies ends who waits for it; an order may be waited for longer than that."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, pathlib, signal, sys, time
from datetime import timedelta
import torch
from services.learner.ranks import members
members.PATIENCE = timedelta(seconds=8)
folder = pathlib.Path(sys.argv[1])
(folder / os.environ["RANK"]).touch()
while len(list(folder.iterdir())) < 2:  # imports take as long as they take
    time.sleep(0.05)
ranks = members.join(torch.device("cpu"))
assert ranks.most(ranks.rank) == 1
if ranks.leads:
    time.sleep(9)
    ranks.tell(b"an order")
else:
    assert ranks.tell() == b"an order"
    os.kill(os.getpid(), signal.SIGSTOP)
began = time.monotonic()
try:
    ranks.most(1)
except RuntimeError:
    print(time.monotonic() - began)
"""
LOADING = """
import os, pathlib, sys
import torch
from services.learner.ranks import members, sharded
leads = os.fork() > 0
os.environ["RANK"] = "0" if leads else "1"
ranks = members.join(torch.device("cpu"))
if not leads:
    sharded.read_distributed = lambda *_, **__: os._exit(0)
try:
    sharded.load_sharded(pathlib.Path(sys.argv[1]), torch.float32, torch.device("cpu"), ranks, packed=True)
except Exception as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""


def two_ranks() -> dict[str, str]:
    """The environment of both."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.slow
def test_a_rank_that_dies_while_a_model_is_read_is_not_told_as_damage_of_the_model(policy_dir: Path) -> None:
    """A UserError would end the run, as weights do that nobody can read."""
    said = subprocess.check_output(
        [sys.executable, "-c", LOADING, policy_dir],
        cwd=REPOSITORY,
        env=two_ranks() | {"OMP_NUM_THREADS": "1"},
        text=True,
        timeout=200,
    )
    assert said == "RuntimeError\n"


@pytest.mark.slow
def test_a_rank_that_hangs_is_waited_for_in_vain_and_not_for_ever(tmp_path: Path) -> None:
    common = two_ranks()
    first, second = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path)],
            cwd=REPOSITORY,
            env=common | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        said, _ = first.communicate(timeout=200)
        assert 4 < float(said) < 60
        assert second.poll() is None and "T (stopped)" in Path(f"/proc/{second.pid}/status").read_text()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
