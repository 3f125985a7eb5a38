"""Feeds inputs to a target and watches it: an unexpected exception, a hang, memory that stays or that was much for a
moment is a failure.

A target answers True for an input it took and False for one it refused in the way it promises; anything else it raises
is the bug that is looked for. Hypothesis makes the inputs, shrinks the one that fails and prints it.
"""

import gc
import math
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import psutil
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shared.malloc import give_back

HANG_S = 10.0  # of CPU time, so that a busy machine is no hang
WAIT_S = 60.0  # by the clock, which a wait is measured by: a busy machine may stretch HANG_S of work so far
AT_ONCE = 2000  # inputs before Hypothesis, which remembers them all, begins anew
MEMORY_MIB = 50.0  # that may stay behind all inputs of a target but the first round's
PEAK_MIB, PEAK_TIMES = 64.0, 64  # one input may take so much for a moment, and so many times its own size
CLAIM_MIB = 1024.0  # all of a target's inputs together, also of memory that nobody writes to
RULES = settings(
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
    phases=[Phase.generate, Phase.target, Phase.shrink],
    print_blob=False,
)


@dataclass(frozen=True)
class Target:
    """`check` takes what `inputs` makes; `of_bytes` is the same for raw bytes, for a coverage-guided fuzzer."""

    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], bool]
    of_bytes: Callable[[bytes], bool] | None = None
    cost: int = 1  # inputs take about this many times as long as those of the cheapest target
    seeds: Callable[[], list[bytes]] = list  # what the coverage-guided fuzzer begins with
    warm: Callable[[], object] = lambda: None  # imports and opens what is kept, before anything is measured


@dataclass
class Tally:
    """What became of a target's inputs."""

    taken: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0
    mib: float = 0.0
    peak_mib: float = 0.0  # the most that one input took for a moment

    @property
    def inputs(self) -> int:
        """All of them."""
        return self.taken + self.refused


class Hang(AssertionError):
    """One input took longer than HANG_S of CPU time, or than WAIT_S by the clock."""


class Blowup(AssertionError):
    """One input took more memory for a moment than its size allows."""


def drive(target: Target, inputs: int, seed: int) -> Tally:
    """Give `target` that many inputs. Raises what it raised, for the smallest input that makes it.

    Memory is compared between the ends of rounds, of which there are two or more: in the first Hypothesis builds its
    tables, 100 MiB for JSON, and each leaves cycles, 280 MiB for 2000 inputs of a target that does nothing.
    """
    target.warm()
    tally, started = Tally(), time.process_time()
    after: list[float] = []
    at_once = min(AT_ONCE, math.ceil(inputs / 2))

    def one(value: Any) -> None:
        begun = time.process_time()
        with at_most(HANG_S, WAIT_S, f"{target.name}: ", value):
            taken, peak = _measured(target.check, value)
            allowed = PEAK_MIB + PEAK_TIMES * _size(value) / 2**20
            if peak > allowed:  # once more, since what is loaded when it is first used is no input's doing
                _, peak = _measured(target.check, value)
        if peak > allowed:
            raise Blowup(f"{target.name}: one input took {peak:.0f} MiB of memory, and {allowed:.0f} are allowed")
        tally.slowest_s = max(tally.slowest_s, time.process_time() - begun)
        tally.peak_mib = max(tally.peak_mib, peak)
        tally.taken += taken
        tally.refused += not taken

    for first in range(0, inputs, at_once):
        some = settings(RULES, max_examples=min(at_once, inputs - first))
        with claiming_at_most(CLAIM_MIB):
            hypothesis.seed(seed + first)(some(given(target.inputs)(one)))()
        after.append(settled_mib())
    tally.seconds = time.process_time() - started
    tally.mib = after[-1] - after[0]
    assert tally.mib < MEMORY_MIB, f"{target.name}: {tally.mib:.0f} MiB stayed behind {tally.inputs} inputs"
    return tally


def settled_mib() -> float:
    """Memory of this process once garbage is collected and what is free has gone back to the system."""
    gc.collect()
    give_back(0)
    return psutil.Process().memory_info().rss / 2**20


def _measured(check: Callable[[Any], bool], value: Any) -> tuple[bool, float]:
    """What `check` says, and how many MiB the process grew by at most meanwhile, given back since or not."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    before = _peak_kib()
    taken = check(value)
    return taken, (_peak_kib() - before) / 2**10


def _peak_kib() -> int:
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


def _size(value: Any) -> int:
    """About the bytes of an input: those of the strings in it, and a word for everything else."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.items()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


@contextmanager
def claiming_at_most(mib: float) -> Iterator[None]:
    """Let this process's memory grow by so much, written to or not; what claims more gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    old, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + int(mib * 2**20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (old, hard))


@contextmanager
def at_most(seconds: float, waiting: float = math.inf, target: str = "", value: Any = None) -> Iterator[None]:
    """Raise Hang in the main thread once the block has used `seconds` of CPU time, or lasted `waiting` by the clock."""

    def hung(signum: int, _: FrameType | None) -> None:
        took = f"{seconds:g} s of work" if signum == signal.SIGVTALRM else f"{waiting:g} s by the clock"
        raise Hang(f"{target}one input took more than {took}: {value!r:.1000}")

    clocks = [(signal.SIGVTALRM, signal.ITIMER_VIRTUAL, seconds)]
    clocks += [(signal.SIGALRM, signal.ITIMER_REAL, waiting)] if waiting < math.inf else []
    old = [signal.signal(signum, hung) for signum, _, _ in clocks]
    for _, clock, limit in clocks:
        signal.setitimer(clock, limit)
    try:
        yield
    finally:
        for _, clock, _ in clocks:
            signal.setitimer(clock, 0)
        for (signum, _, _), handler in zip(clocks, old, strict=True):
            signal.signal(signum, handler)
