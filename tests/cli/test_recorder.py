"""metrics.jsonl has one line per step, whatever crashed and was trained again."""

import json
from pathlib import Path

import pytest

from cli.run.recorder import Recorder, read_records
from cli.run.summary import summarise
from shared.errors import UserError


def step(number: int, version: int = 0) -> dict:
    return {"kind": "step", "time": 1.0, "step": number, "version": [version, number + 1]}


def lines(run_dir: Path) -> list[tuple[int, int]]:
    return [(r["step"], r["version"][0]) for r in read_records(run_dir / "metrics.jsonl")]


def test_steps_are_appended_and_other_events_are_not(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.add(b"1-0", step(0))
    recorder.add(b"2-0", {"kind": "eval", "time": 1.0, "round": 0, "em": 0.5})
    recorder.add(b"3-0", step(1))
    recorder.close()
    assert lines(tmp_path) == [(0, 0), (1, 0)]
    assert [r["kind"] for r in read_records(tmp_path / "events.jsonl")] == ["step", "eval", "step"]


def test_a_step_said_twice_is_kept_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for id, number in ((b"1-0", 0), (b"2-0", 1), (b"3-0", 1)):
        recorder.add(id, step(number))
    recorder.close()
    assert lines(tmp_path) == [(0, 0), (1, 0)]


def test_a_later_lineage_replaces_its_steps_and_what_came_after_them(tmp_path: Path) -> None:
    first = Recorder(tmp_path)
    for number in range(5):
        first.add(f"{number + 1}-0".encode(), step(number))
    first.close()
    second = Recorder(tmp_path)
    second.add(b"6-0", step(2, version=1))
    second.close()
    assert lines(tmp_path) == [(0, 0), (1, 0), (2, 1)]


def test_a_resumed_run_reads_on_behind_the_last_event(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.note("session", pid=1)
    assert recorder.last_id == "0-0"
    recorder.add(b"17-3", {"kind": "rollout", "time": 1.0, "id": "an id of its own"})
    recorder.note("memory", peak_bytes=1)
    recorder.close()
    again = Recorder(tmp_path)
    assert again.last_id == "17-3"
    assert [r["kind"] for r in again.records()] == ["session", "rollout", "memory"]
    again.close()


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[" * 100_000, b"7", b'"step"'], ids=["bytes", "nested", "7", "text"])
def test_a_line_that_is_no_record_costs_that_line_only(tmp_path: Path, line: bytes) -> None:
    recorder = Recorder(tmp_path)
    recorder.add(b"1-0", step(0))
    recorder.close()
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(line + b"\n")
    again = Recorder(tmp_path)
    assert again.last_id == "1-0" and len(again.records()) == 1
    again.close()


def test_a_line_cut_off_by_a_crash_costs_that_line_only(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.add(b"1-0", step(0))
    recorder.close()
    for name in ("events.jsonl", "metrics.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write(json.dumps(step(1))[:20])
    again = Recorder(tmp_path)
    again.add(b"2-0", step(1))
    again.close()
    assert lines(tmp_path) == [(0, 0), (1, 0)]


def test_a_full_disk_takes_no_part_of_a_line_and_a_step_that_one_file_took_is_in_both_in_the_end(
    tmp_path: Path, full_disk
) -> None:
    recorder = Recorder(tmp_path)
    recorder.add(b"1-0", {"kind": "rollout", "time": 1.0, "text": "long " * 100})
    before = recorder.events_path.read_bytes()
    with full_disk(len(before) + 10), pytest.raises(OSError):
        recorder.add(b"2-0", step(0))
    assert recorder.events_path.read_bytes() == before and recorder.last_id == "1-0"
    assert lines(tmp_path) == [(0, 0)]  # had the command been killed now, the step would be read again
    recorder.add(b"2-0", step(0))
    recorder.close()
    assert lines(tmp_path) == [(0, 0)]
    assert [r["kind"] for r in read_records(tmp_path / "events.jsonl")] == ["rollout", "step"]


SESSION = {"kind": "session", "time": 1.0, "pid": 7, "steps": 9, "env_latency": ""}
BAD = [
    *({}, [], 3, {"kind": "step", "time": 1.0}, {"kind": "eval"}, {"time": 1.0}, {"kind": 3, "time": 1.0}),
    *({**step(2), "step": wrong} for wrong in ("2", None, 2.5, True)),
    *({**step(2), "time": wrong} for wrong in ("now", None, float("nan"), True, 10**400)),
    *({**step(2), "learner": None}, {**step(2), "seconds": "2"}),
    *({"kind": kind, "time": 1.0} for kind in ("finished", "eval", "memory", "ready", "stopped", "fault")),
    {**SESSION, "steps": "9"},
    {"kind": ["session"], "time": 1.0},
]


def test_a_line_that_is_no_such_record_is_left_out_and_its_neighbours_stay(tmp_path: Path) -> None:
    good = [SESSION, step(0), {"stream_id": "1-0", "kind": "eval", "time": 1.0, "round": 0, "em": 0.5}, step(1)]
    good += [
        {"kind": "memory", "time": 2.0, "peak_bytes": 3, "measure": "PSS"},
        {"kind": "stopped", "time": 3.0, "seconds": 1.5},
    ]
    lines = [json.dumps(record) for record in (*good[:2], *BAD, *good[2:])]
    for name in ("events.jsonl", "metrics.jsonl"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        assert read_records(tmp_path / name) == [r for r in good if name == "events.jsonl" or r["kind"] == "step"]
    Recorder(tmp_path).close()
    assert summarise(read_records(tmp_path / "events.jsonl"))["steps"] == 2


def test_an_id_that_no_stream_has_is_not_where_it_reads_on(tmp_path: Path) -> None:
    ids = ("1-0", "99999999999999999999-0", "2-18446744073709551616", "x")
    (tmp_path / "events.jsonl").write_text("".join(json.dumps({"stream_id": id, **step(0)}) + "\n" for id in ids))
    recorder = Recorder(tmp_path)
    recorder.close()
    assert recorder.last_id == "1-0"


def test_a_folder_that_was_moved_is_noticed(tmp_path: Path) -> None:
    (there := tmp_path / "run").mkdir()
    recorder = Recorder(there)
    recorder.check_place()
    there.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="was moved or deleted while its run went on"):
        recorder.check_place()
    there.mkdir()
    (there / "events.jsonl").write_text("another's")
    with pytest.raises(UserError, match="was moved or deleted"):
        recorder.add(b"1-0", step(0))
    assert not (there / "metrics.jsonl").exists()
    recorder.close()
