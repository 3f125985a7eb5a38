"""Starting the ranks of a learner on this machine, with the environment that `torchrun` would give them.

The learner's own process holds the lease on the GPUs and the ranks work for it: when one of them ends, all do, and the
status says how. Across machines `torchrun ... -m services.learner` starts them instead, and leases are left out.
"""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import psutil

log = logging.getLogger("headrace")

_LOOK_S = 0.1
_PR_SET_PDEATHSIG = 1


def is_rank() -> bool:
    """Whether this process was started as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def run_ranks(count: int, stop_s: float) -> int:
    """Start them and wait; a stop gives rank 0 `stop_s`.

    Returns 0: rank 0 has finished or was stopped; 2: one gave a sentence for the user; else 1.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-m", "services.learner"]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            preexec_fn=_die_with_parent,
        )
        for rank in range(count)
    ]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ranks[0].send_signal(signal.SIGTERM))
    signal.set_wakeup_fd(-1)  # what this process would do itself when it is told to stop is now up to rank 0
    # one that leaves at the end may be quicker than rank 0, which told it to
    while not (
        ended := [n for n, process in enumerate(ranks) if process.poll() is not None and (process.returncode or not n)]
    ):
        time.sleep(_LOOK_S)
    first = ended[0]
    status = ranks[first].returncode
    if first or status:
        log.error("rank %d ended with status %d: the learner stops", first, status)
        if stopped := [rank for rank, process in enumerate(ranks) if _is_stopped(process)]:
            log.error("rank %s does not run: it was stopped, or waits for a device", ", ".join(map(str, stopped)))
    if first:
        ranks[0].terminate()  # it may be about to finish a write
        deadline = time.monotonic() + stop_s
        while ranks[0].poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    for process in ranks:
        process.kill()
        process.wait()
    return status if status == 2 or (first == 0 and status == 0) else 1


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether the system has it stopped, or in a sleep that no signal ends."""
    with suppress(psutil.Error):
        return psutil.Process(process.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP)
    return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
