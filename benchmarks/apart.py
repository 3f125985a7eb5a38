"""A function in a fresh process: for memory, which no process gives back, and for peers with caches of their own."""

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """What a module's function returns in a new process. Raises BrokenProcessPool where that process is killed."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_bytes() -> int:
    """The most that was ever resident of this process, files mapped into memory included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def own_bytes(pid: int) -> int:
    """What is resident of a process without the files it maps: what it takes from others."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def resident_bytes(pid: int) -> int:
    """All that is resident of a process."""
    return psutil.Process(pid).memory_info().rss
