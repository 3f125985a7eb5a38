"""Feeds inputs to a target and watches it: an unexpected exception, a hang or memory that stays is a failure.

A target answers True for an input it took and False for one it refused in the way it promises; anything else it raises
is the bug that is looked for. Hypothesis makes the inputs, shrinks the one that fails and prints it.
"""

import gc
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import hypothesis
import psutil
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shared.malloc import give_back

HANG_S = 10.0  # of CPU time, so that a busy machine is no hang
AT_ONCE = 2000  # inputs before Hypothesis, which remembers them all, begins anew
MEMORY_MIB = 50.0  # that may stay behind all inputs of a target but the first round's
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

    @property
    def inputs(self) -> int:
        """All of them."""
        return self.taken + self.refused


class Hang(AssertionError):
    """One input took longer than HANG_S of CPU time."""


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
        with at_most(HANG_S):
            taken = target.check(value)
        tally.slowest_s = max(tally.slowest_s, time.process_time() - begun)
        tally.taken += taken
        tally.refused += not taken

    for first in range(0, inputs, at_once):
        some = settings(RULES, max_examples=min(at_once, inputs - first))
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


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread once the block has used so much CPU time."""

    def hung(_: int, __: FrameType | None) -> None:
        raise Hang(f"one input took more than {seconds:g} s")

    old = signal.signal(signal.SIGVTALRM, hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
