"""Each figure of the data paths at a tiny size: it runs through the real parts and gives numbers."""

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figure import Figure


def are_numbers(figures: list[Figure], names: int) -> bool:
    """So many figures, all their measurements finite; nothing is as fast as that it takes no time."""
    assert len({figure.name for figure in figures}) == names
    return all(math.isfinite(value) and value != 0 for f in figures for value in (*f.ours, *f.peer, *f.ratios))


def test_selection() -> None:
    from benchmarks.selection import measure

    figures = measure(groups=3000, wanted=16, rounds=3, repetitions=2)
    assert are_numbers(figures, 3)
    assert figures[2].met, "the bytes of a group's index do not depend on the machine"


@pytest.mark.e2e
@pytest.mark.slow
def test_store() -> None:
    from benchmarks.store import measure

    assert are_numbers(measure(groups=4, size=2000, in_flight=2, repetitions=1), 3)


@pytest.mark.e2e
@pytest.mark.slow
def test_end_to_end() -> None:
    from benchmarks.end_to_end import measure

    assert are_numbers(measure(batches=1, batch=4, size=2000, repetitions=1), 2)


@pytest.mark.e2e
@pytest.mark.slow
def test_swap() -> None:
    from benchmarks.swap import measure

    figures = measure(hidden=64, layers=1, vocabulary=600, repetitions=1, requests=2, context=32)
    assert are_numbers(figures, 3)


@pytest.mark.slow
def test_learner() -> None:
    from benchmarks.learner import measure

    speed, memory = measure(groups=2, rollouts=2, tokens=8, hidden=64, layers=1, repetitions=1)
    assert are_numbers([speed], 1)
    assert memory.ours[0] >= 0  # so small a step may fit into what the process has already


@pytest.mark.e2e
@pytest.mark.slow
def test_index_and_retrieval(tmp_path: Any) -> None:
    from benchmarks import index, retrieval

    assert are_numbers(index.measure(sizes=(300, 600), folder=str(tmp_path)), 4)
    assert are_numbers(retrieval.measure(passages=600, clients=2, queries=5, repetitions=1, folder=str(tmp_path)), 5)


@pytest.mark.slow
def test_a_build_that_was_cut_off_is_measured_from_its_beginning(tmp_path: Path) -> None:
    from benchmarks import index

    whole = index.kept(tmp_path, 300)["seconds"]
    (tmp_path / "300.json").unlink()
    assert index.kept(tmp_path, 300)["seconds"].keys() == whole.keys(), "an index that is there takes no stage"
