"""A study with every real process, killed in the middle and started again: the same report as one that was not."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.run.plan import PACKAGE_ROOT
from cli.run.recorder import read_records

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

STUDY = """
[study]
name = "{name}"
base = "{base}"
seeds = [0]
fresh_groups = 6
samples = 2
questions = 3

[common]
"learner.batch" = 2
"rollout.group_size" = 8
"replay.max_lag" = 0
"replay.tau" = 10.0
"replay.capacity" = 8
"actor.count" = 1
"env.latency" = 0.05

[[arm]]
name = "b"
settings = {{ "replay.policy" = "none" }}

[[arm]]
name = "b + HD b/2"
settings = {{ "replay.select" = 1 }}
"""
BUDGET = """
[study]
name = "{name}"
base = "{base}"
seeds = [0]
fresh_groups = 24
samples = 1
questions = 3

[common]
"learner.batch" = 2
"rollout.group_size" = 4
"replay.max_lag" = 0
"actor.count" = 1

[[arm]]
name = "dapo"
settings = {{ "replay.policy" = "dapo" }}
"""
# wall time, and what follows from it
TIMED = ("_s", "_s_median", "waiting_share", "tokens_per_s", "peak_memory_bytes", "restarts", "engine_gap")


LONG_S = 800  # of a study, on a machine that does much else


Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the command on the study of this name; whatever is left at the end of the test is killed."""
    processes: list[subprocess.Popen] = []

    def run(name: str, *words: str, study: str = STUDY) -> subprocess.Popen:
        file = tmp_path / f"{name}.toml"
        file.write_text(study.format(name=name, base=PACKAGE_ROOT / "examples" / "atlas.toml"))
        command = [sys.executable, "-P", "-m", "cli.main", "compare", str(file), *words]
        with (tmp_path / "output").open("ab") as output:
            processes.append(
                subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
            )
        return processes[-1]

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    """runs.csv without what the clock decides."""
    with (folder / "runs" / name / "runs.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.endswith(TIMED)} for row in csv.DictReader(file)]


def test_a_study_that_was_killed_comes_to_the_report_of_one_that_was_not(start: Start, tmp_path: Path) -> None:
    whole = start("whole")
    assert whole.wait(LONG_S) == 0, (tmp_path / "output").read_text()

    runs = tmp_path / "runs" / "killed" / "runs"
    shutil.copytree(tmp_path / "runs" / "whole" / "runs" / "b-s0", runs / "b-s0", symlinks=True)  # as far as both come
    killed = start("killed")
    deadline = time.monotonic() + LONG_S
    while not read_records(runs / "b-HD-b-over-2-s0" / "metrics.jsonl"):
        assert killed.poll() is None and time.monotonic() < deadline, (tmp_path / "output").read_text()
        time.sleep(0.1)
    first_made = (runs / "b-s0" / "trained.json").stat().st_mtime_ns
    assert not (runs / "b-HD-b-over-2-s0" / "trained.json").exists()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()

    again = start("killed")
    assert again.wait(LONG_S) == 0, (tmp_path / "output").read_text()
    assert (runs / "b-s0" / "trained.json").stat().st_mtime_ns == first_made, "a run that was made is kept"

    a, b = rows(tmp_path, "whole"), rows(tmp_path, "killed")
    assert [row["arm"] for row in a] == ["b", "b + HD b/2"]
    assert a[1]["replayed_responses"] != "0" and a[0]["mean_at_k"]
    for x, y in zip(a, b, strict=True):
        assert x.keys() == y.keys()
        for key in x:
            # the engine's last digit depends on what it happens to compute together
            expected = x[key] if not _is_number(x[key]) else pytest.approx(float(x[key]), rel=1e-3, abs=1e-9)
            assert (float(y[key]) if _is_number(y[key]) else y[key]) == expected, key
    texts = [(tmp_path / "runs" / name / "report.md").read_text() for name in ("whole", "killed")]
    headings = [[line for line in text.splitlines() if line.startswith("##")] for text in texts]
    assert headings[0] == headings[1] and "Not complete" not in texts[1]
    assert all(
        (tmp_path / "runs" / "killed" / "plots" / f"{p}.png").is_file() for p in ("step_time", "quality", "ages")
    )

    before = (tmp_path / "runs" / "killed" / "report.html").read_bytes()
    report = start("killed", "--report-only")
    assert report.wait(LONG_S) == 0
    assert (tmp_path / "runs" / "killed" / "report.html").read_bytes() == before, "a report is a function of its runs"

    other = start("killed", "--learner.lr", "1e-5")
    assert other.wait(LONG_S) == 2
    assert "was made with learner.lr = 0.0005, and the study now says 1e-05" in (tmp_path / "output").read_text()


def test_an_arm_that_throws_groups_away_ends_when_it_has_generated_as_many_as_the_others(
    start: Start, tmp_path: Path
) -> None:
    study = start("budget", study=BUDGET)
    assert study.wait(LONG_S) == 0, (tmp_path / "output").read_text()
    run_dir = tmp_path / "runs" / "budget" / "runs" / "dapo-s0"
    note = json.loads((run_dir / "trained.json").read_text())
    steps = read_records(run_dir / "metrics.jsonl")
    assert note["stopped_at_budget"] and note["steps"] <= len(steps) < 12
    assert steps[note["steps"] - 1]["groups_generated"] >= 24, "the budget, which 12 steps of 2 would be without drops"
    assert (run_dir / note["weights"] / "model.safetensors").is_file()
    (row,) = rows(tmp_path, "budget")
    assert row["mean_at_k"] and int(row["filtered_groups"]) > 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
