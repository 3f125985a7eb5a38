"""`headrace bench` lists, refuses by name, and prints what the benchmarks measured."""

import json
import math
from pathlib import Path

import pytest

from benchmarks import catalogue
from benchmarks.figure import Figure
from cli.main import main

MADE = '''"""A made one.

More.
"""

from benchmarks.figure import Figure, run_alone


def measure(*, rounds: int = 3, scale: float = 2.0, ns: tuple[int, ...] = (1, 2)) -> list[Figure]:
    peer = [2 / scale] * rounds
    return [Figure(name="made", unit="s", ours=[scale] * rounds, peer=peer, against=str(ns), at_most=1.5)]


if __name__ == "__main__":
    run_alone(measure)
'''


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of benchmarks that holds a single one, made for the test, and is what a new process imports."""
    folder, real = tmp_path / "benchmarks", catalogue.FOLDER
    folder.mkdir()
    for name in ("__init__.py", "figure.py"):
        (folder / name).write_bytes((real / name).read_bytes())
    (folder / "made.py").write_text(MADE)
    monkeypatch.setattr(catalogue, "FOLDER", folder)
    monkeypatch.chdir(tmp_path)


def test_the_list_names_every_benchmark_with_its_first_line_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    printed = capsys.readouterr().out
    for name, benchmark in catalogue.benchmarks().items():
        assert name in printed
        assert benchmark.summary and benchmark.summary in printed
        assert benchmark.sizes, f"{name} takes no size"
    assert printed.endswith("with their defaults: --size SIZE=VALUE changes one.\n")


def test_an_unknown_name_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "logprob_memroy"]) == 2
    assert "did you mean 'logprob_memory'?" in capsys.readouterr().err


def test_an_unknown_size_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "logprob_memory", "--size", "token=3"]) == 2
    assert "did you mean 'tokens'?" in capsys.readouterr().err


@pytest.mark.usefixtures("made")
def test_json_holds_each_repetition_and_what_follows_from_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "made", "--json", "--size", "rounds=2", "--size", "ns=(5, 6)"]) == 0
    figure = json.loads(capfd.readouterr().out)["figures"]["made"][0]
    assert (figure["ours"], figure["ratio"], figure["repetitions"], figure["met"]) == ([2.0, 2.0], 2.0, 2, False)
    assert figure["against"] == "(5, 6)"


@pytest.mark.usefixtures("made")
def test_a_missed_target_is_shown_and_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "made"]) == 0
    row = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("made"))
    assert "<= 1.5x" in row and row.split()[-1] == "no"


@pytest.mark.usefixtures("made")
def test_one_that_fails_is_named_and_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "made", "--size", "scale=0"]) == 1
    assert "made failed" in capfd.readouterr().err


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    figure = Figure(name="f", unit="s", ours=[1.0, 4.0, 3.0], peer=[1.0, 2.0, 1.0], at_least=2.0)
    assert figure.ratio == 2.0 and figure.spread == (1.0, 3.0) and figure.met
    alone = Figure(name="f", unit="ms", ours=[1.0], judged="ours", at_most=0.5)
    assert alone.ratio is None and not alone.met and math.isfinite(alone.record()["median"])
