"""A short form of `python -m tests.fuzz`: each target takes some inputs, refuses some, and fails on none."""

import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.fuzz.harness import Blowup, Hang, Target, at_most, drive
from tests.fuzz.targets import TARGETS


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_breaks_it(target: Target):
    tally = drive(target, 400 // target.cost, seed=1)
    assert tally.taken and tally.refused


def breaks(_: int) -> bool:
    raise ZeroDivisionError


def hangs(_: int) -> bool:
    while True:
        pass


def waits(_: int) -> bool:
    time.sleep(1000)
    return True


def lets_go_again(_: int) -> bool:
    return len(np.ones(500 * 2**20, np.uint8)) > 0


def believes(_: int) -> bool:
    return len(np.empty(2**31, np.uint8)) > 0  # nobody writes to it, so it never becomes resident


@pytest.mark.parametrize(
    ("check", "found", "told"),
    [
        (breaks, ZeroDivisionError, None),
        (hangs, Hang, "planted: one input took more than 0.05 s of work: 7"),
        (waits, Hang, "planted: one input took more than 0.2 s by the clock: 7"),
        (lets_go_again, Blowup, "planted: one input took 500 MiB of memory, and 64 are allowed"),
        (believes, MemoryError, None),
    ],
)
def test_what_breaks_hangs_waits_or_takes_memory_for_a_moment_is_found(
    check: Callable[[int], bool], found: type[BaseException], told: str | None, monkeypatch
):
    monkeypatch.setattr("tests.fuzz.harness.HANG_S", 0.05 if check is hangs else 10.0)
    monkeypatch.setattr("tests.fuzz.harness.WAIT_S", 0.2 if check is waits else 60.0)
    with pytest.raises(found, match=told) as raised:
        drive(Target("planted", st.just(7), check), 3, seed=0)
    assert any("value=7" in note for note in raised.value.__notes__), "and with what input"


def test_a_large_input_may_take_memory_in_proportion(monkeypatch):
    monkeypatch.setattr("tests.fuzz.harness.PEAK_MIB", 1)
    sizes = st.just(2**20)
    drive(Target("planted", sizes.map(bytes), lambda data: bool(data * 50)), 3, seed=0)
    with pytest.raises(Blowup):
        drive(Target("planted", sizes, lambda size: bool(bytes(range(256)) * (size // 256) * 50)), 3, seed=0)


@pytest.mark.parametrize("forgets", [False, True])
def test_memory_that_is_kept_is_found_and_garbage_in_cycles_is_none(forgets: bool, monkeypatch):
    monkeypatch.setattr("tests.fuzz.harness.MEMORY_MIB", 40)  # above what the tests before leave to settle, 12 once
    kept: list[object] = []

    def check(_: int) -> bool:
        cycle: list[object] = [bytes(range(256)) * 2**13]  # two MiB
        cycle.append(cycle)
        if not forgets:
            kept.append(cycle)
        return True

    with nullcontext() if forgets else pytest.raises(AssertionError, match="stayed behind 60 inputs"):
        drive(Target("planted", st.integers(), check), 60, seed=0)


def test_an_input_that_ends_in_time_is_no_hang():
    with at_most(5):
        sum(range(1000))
