"""A function in a fresh process: for memory, which no process gives back, and for peers with caches of their own."""

import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """What a module's function returns in a new process. Raises BrokenProcessPool where that process is killed.

    That process never sees Ctrl-C: it would have a traceback for it. Here it ends that process.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits it
        try:
            result = pool.submit(function, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            return result.result()
        except KeyboardInterrupt:
            for process in active_children():
                process.kill()
            raise


def peak_bytes() -> int:
    """The most that was ever resident of this process, files mapped into memory included.

    Not getrusage: that of a new process begins with what its parent had.
    """
    return _status("self", "VmHWM")


def own_bytes(pid: int) -> int:
    """What is resident of a process without the files it maps: what it takes from others."""
    return _status(pid, "RssAnon")


def resident_bytes(pid: int) -> int:
    """All that is resident of a process."""
    return psutil.Process(pid).memory_info().rss


def _status(pid: int | str, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
