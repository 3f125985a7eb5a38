"""A short form of `python -m tests.fuzz`: each target takes some inputs, refuses some, and fails on none."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import strategies as st

from tests.fuzz.harness import Hang, Target, at_most, drive
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


@pytest.mark.parametrize(("check", "found"), [(breaks, ZeroDivisionError), (hangs, Hang)])
def test_what_breaks_or_hangs_is_found(check: Callable[[int], bool], found: type[Exception], monkeypatch):
    monkeypatch.setattr("tests.fuzz.harness.HANG_S", 0.05)
    with pytest.raises(found):
        drive(Target("planted", st.just(0), check), 3, seed=0)


@pytest.mark.parametrize("forgets", [False, True])
def test_memory_that_is_kept_is_found_and_garbage_in_cycles_is_none(forgets: bool, monkeypatch):
    monkeypatch.setattr("tests.fuzz.harness.MEMORY_MIB", 10)
    kept: list[object] = []

    def check(_: int) -> bool:
        cycle: list[object] = [bytes(range(256)) * 2**12]  # a MiB
        cycle.append(cycle)
        if not forgets:
            kept.append(cycle)
        return True

    with nullcontext() if forgets else pytest.raises(AssertionError, match="stayed behind 60 inputs"):
        drive(Target("planted", st.integers(), check), 60, seed=0)


def test_an_input_that_ends_in_time_is_no_hang():
    with at_most(5):
        sum(range(1000))
