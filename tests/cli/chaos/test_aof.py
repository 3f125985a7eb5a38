"""The append-only file as a log: whole, cut off by a crash, and damaged."""

import json
from pathlib import Path

import pytest

from cli.chaos.aof import AppendOnlyFile
from cli.chaos.checker import check
from cli.chaos.log import Removed, facts
from cli.main import main
from shared.errors import UserError
from tests.cli.chaos.logs import Log, log_file, settings

pytestmark = pytest.mark.slow


def test_what_took_effect_together_is_whole_where_a_crash_cut_the_file_off(folder: Path, tmp_path: Path) -> None:
    whole = log_file(folder).read_bytes()
    ends, cut_off = ends_of_what_took_effect(whole), set()
    for size in range(len(whole) // 2, len(whole) // 2 + 400, 29):
        log = AppendOnlyFile(holding(tmp_path, whole[:size]))
        verdict = check(settings(), facts(log.transactions(), "judged"))
        assert verdict.broken == [] and verdict.short > 0 and not verdict.passed
        assert log.cut_off == size - max(end for end in ends if end <= size)
        cut_off.add(log.cut_off)
    assert len(cut_off) > 5 and min(cut_off) >= 0


def ends_of_what_took_effect(log: bytes) -> list[int]:
    """Behind each transaction, and behind each command that is in none."""
    at, ends, open_ = 0, [], False
    while at < len(log):
        words = []
        count, at = number(log, at)
        for _ in range(count):
            length, at = number(log, at)
            words.append(log[at : at + length])
            at += length + 2
        open_ = words[0] == b"MULTI" or (open_ and words[0] != b"EXEC")
        if not open_:
            ends.append(at)
    return ends


def number(log: bytes, at: int) -> tuple[int, int]:
    """Behind the sign at `at`, and where its line ends."""
    end = log.index(b"\r\n", at)
    return int(log[at + 1 : end]), end + 2


def holding(folder: Path, log: bytes) -> Path:
    """A server's folder whose log is this."""
    (folder / "appendonlydir").mkdir(exist_ok=True)
    (folder / "appendonlydir" / "a.manifest").write_text("file a.incr.aof seq 1 type i\n")
    (folder / "appendonlydir" / "a.incr.aof").write_bytes(log)
    return folder


def run_folder(tmp_path: Path, log: bytes) -> Path:
    """The folder of a run of 14 steps with this log."""
    run_dir = tmp_path / "judged"
    (run_dir / "redis").mkdir(parents=True)
    (run_dir / "config.toml").write_text(settings().to_toml())
    holding(run_dir / "redis", log)
    return run_dir


def test_a_whole_log_passes_and_one_that_ends_early_does_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = log_file(folder).read_bytes()
    run_dir = run_folder(tmp_path, whole)
    assert main(["chaos", "--check", str(run_dir)]) == 0
    assert "The durable log keeps every rule.\n" in capsys.readouterr().out
    holding(run_dir / "redis", whole[: len(whole) // 2])
    assert main(["chaos", "--check", str(run_dir)]) == 1
    said = capsys.readouterr().out
    assert "A kill has cut off the last" in said and "the run is not at its end: the log holds" in said
    assert main(["chaos", "--check", str(run_dir), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["finished"], found["broken"]) == (False, False, [])
    assert found["log"]["bytes_cut_off"] > 0


@pytest.mark.parametrize("damage", ["empty", "garbage", "hole", "digits", "zeros", "transaction"])
def test_a_log_that_is_damaged_is_refused(
    damage: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = log_file(folder).read_bytes()
    middle = len(whole) // 2
    inside = whole.index(b"$", middle) + 1
    commit = whole.index(b"*1\r\n$4\r\nEXEC\r\n", middle)
    log, sentence = {
        "empty": (b"", "says nothing of run 'judged'"),
        "garbage": (bytes(range(256)) * 40, "is damaged at byte 0 of 10240"),
        "hole": (whole[:middle] + whole[middle + 333 :], "is damaged at byte"),
        "digits": (whole[:inside] + b"9999999" + whole[inside:], "is damaged at byte"),  # a word beyond the end
        "zeros": (whole + bytes(64), f"is damaged at byte {len(whole)}"),
        "transaction": (whole[:commit] + whole[commit + 14 :], "a transaction there is not whole"),
    }[damage]
    assert main(["chaos", "--check", str(run_folder(tmp_path, log))]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_a_history_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    log = AppendOnlyFile(tmp_path)
    with pytest.raises(UserError, match="holds no manifest"):
        list(log.transactions())
    holding(tmp_path, b"REDIS0011")
    with pytest.raises(UserError, match="has rewritten its log"):
        list(log.transactions())
    (tmp_path / "appendonlydir" / "a.manifest").write_text("file a.gone.aof seq 1 type i\n")
    with pytest.raises(UserError, match="is not whole without it"):
        list(log.transactions())


def test_removals_are_read_with_all_their_ids(clean: Log) -> None:
    assert any(isinstance(f, Removed) and len(f.ids) > 1 for t in clean for f in t)
