"""`headrace bench` lists, refuses by name, and prints what the benchmarks measured."""

import json
import math
import os
import signal
import subprocess
import sys
import time
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

SLOW = '''"""One that has a folder, a process and time to lose."""

import os
import sys
import tempfile
import time

from benchmarks.apart import apart
from benchmarks.figure import Figure, run_alone


def measure(*, rounds: int = 3) -> list[Figure]:
    folder = tempfile.mkdtemp()
    try:
        apart(stay)
    finally:
        time.sleep(0.7)
        os.rmdir(folder)
    return []


def stay() -> None:
    print("begun", file=sys.stderr, flush=True)
    time.sleep(60)


if __name__ == "__main__":
    run_alone(measure)
'''


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of benchmarks that holds a single one, made for the test, and is what a new process imports."""
    folder, real = tmp_path / "benchmarks", catalogue.FOLDER
    folder.mkdir()
    for name in ("__init__.py", "__main__.py", "apart.py", "catalogue.py", "figure.py", "leaving.py"):
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


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("to", ["all, from the terminal", "the command", "the child, twice"])
def test_ctrl_c_leaves_no_folder_no_process_and_no_traceback(tmp_path: Path, to: str) -> None:
    (tmp_path / "benchmarks" / "slow.py").write_text(SLOW)
    (tmp_path / "scratch").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "scratch")}
    command = [sys.executable, "-m", *(["benchmarks"] if to == "the child, twice" else ["cli.main", "bench"]), "slow"]
    with (tmp_path / "said").open("w+") as said:
        bench = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=said, start_new_session=True)
        until = time.monotonic() + 30
        while "begun" not in (tmp_path / "said").read_text():
            assert bench.poll() is None and time.monotonic() < until, (tmp_path / "said").read_text()
            time.sleep(0.05)
        assert list((tmp_path / "scratch").iterdir()), "there is something to leave"
        (os.killpg if to == "all, from the terminal" else os.kill)(bench.pid, signal.SIGINT)
        if to == "the child, twice":
            time.sleep(0.3)
            bench.send_signal(signal.SIGINT)
        assert bench.wait(30) == 130
    assert list((tmp_path / "scratch").iterdir()) == []
    lines = (tmp_path / "said").read_text().splitlines()
    assert lines[-1] == "begun" and lines[:-1] in (
        [],
        ["[1/1] slow: One that has a folder, a process and time to lose"],
    )
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(bench.pid, 0)
            time.sleep(0.05)


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    figure = Figure(name="f", unit="s", ours=[1.0, 4.0, 3.0], peer=[1.0, 2.0, 1.0], at_least=2.0)
    assert figure.ratio == 2.0 and figure.spread == (1.0, 3.0) and figure.met
    alone = Figure(name="f", unit="ms", ours=[1.0], judged="ours", at_most=0.5)
    assert alone.ratio is None and not alone.met and math.isfinite(alone.record()["median"])
