"""A run's figures as TensorBoard reads them, decoded by protobuf and not by what wrote them, and as a table."""

import csv
import json
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cli import export
from cli.main import main
from cli.run import session
from cli.run.recorder import EVENTS, METRICS
from cli.tfevents import crc32c

STEP = {
    "kind": "step",
    "steps": 3,
    "acceptance": 0.5,
    "age_mean": None,
    "ages": [1, 2],
    "learner": {"loss": -1.25, "lr": 1e-6},
}
STEPS = [STEP | {"step": n, "time": 100.0 + n, "tokens_sampled": 1000 * (n + 1)} for n in range(2)]
EVAL = {
    "kind": "eval",
    "round": 0,
    "time": 99.0,
    "em": 0.25,
    "n": 8,
    "per_source": {"sums": 0.25},
    "version_min": [0, 0],
}
WHOLE = {"acceptance": 0.5, "learner/loss": -1.25, "learner/lr": pytest.approx(1e-6)}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "atlas"
    folder.mkdir(parents=True)
    (folder / "config.toml").touch()
    write(folder / METRICS, STEPS)
    write(folder / EVENTS, [{"kind": "session", "time": 98.0}, EVAL, *STEPS])
    return folder


def write(file: Path, records: list[dict]) -> None:
    with file.open("a") as lines:
        lines.writelines(json.dumps(r) + "\n" for r in records)


def read_events(folder: Path) -> list[tuple[float, int, dict[str, float]]]:
    """(wall time, step, scalars) of each event behind the first; every checksum is looked at."""
    (file,) = folder.glob("*tfevents*")
    data, found = file.read_bytes(), []
    while data:
        length, length_crc = struct.unpack("<QI", data[:12])
        assert length_crc == masked(data[:8])
        event = data[12 : 12 + length]
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (masked(event),)
        found.append(message().FromString(event))
        data = data[16 + length :]
    assert found[0].file_version == "brain.Event:2"
    return [(e.wall_time, e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in found[1:]]


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def message() -> Any:
    """The class of Event, from a description of our own."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    once, repeated = (
        descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    )
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t")
    described = {
        "Value": {"tag": (1, "STRING", once), "simple_value": (2, "FLOAT", once)},
        "Summary": {"value": (1, "t.Value", repeated)},
        "Event": {
            "wall_time": (1, "DOUBLE", once),
            "step": (2, "INT64", once),
            "file_version": (3, "STRING", once),
            "summary": (5, "t.Summary", once),
        },
    }
    for name, fields in described.items():
        entry = file.message_type.add(name=name)
        for field, (number, kind, label) in fields.items():
            made = entry.field.add(name=field, number=number, label=label)
            if kind.startswith("t."):
                made.type, made.type_name = made.TYPE_MESSAGE, f".{kind}"
            else:
                made.type = getattr(made, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


def test_the_checksum_is_the_published_one():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4


def test_every_number_of_a_run_is_a_curve(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):  # the second time writes the same file anew
        assert main(["export", str(run_dir), "--to", "tensorboard"]) == 0
    assert capsys.readouterr().out == f"{run_dir / 'tensorboard'}\n" * 2
    assert read_events(run_dir / "tensorboard") == [
        (99.0, 0, {"eval/em": 0.25, "eval/n": 8, "eval/per_source/sums": 0.25}),
        (100.0, 0, WHOLE | {"tokens_sampled": 1000}),
        (101.0, 1, WHOLE | {"tokens_sampled": 2000}),
    ]


@pytest.mark.slow
def test_a_run_that_goes_on_is_followed_to_its_end(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "LOOK_S", 0.05)
    out = run_dir / "tensorboard"
    running = session.lock(run_dir)
    follow = threading.Thread(target=export.write_events, args=(run_dir, out, True))
    follow.start()
    deadline = time.monotonic() + 20
    while not out.is_dir() or len(read_events(out)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    again = STEPS[1] | {"time": 102.0, "acceptance": 0.75}  # trained again after a crash
    write(run_dir / METRICS, [again])
    write(run_dir / EVENTS, [again, {"kind": "finished", "step": 3, "time": 103.0}])
    follow.join(20)
    assert not follow.is_alive()
    assert [(step, curves.get("acceptance")) for _, step, curves in read_events(out)][1:] == [
        (0, 0.5),
        (1, 0.5),
        (1, 0.75),
    ]
    running.close()


def test_a_run_that_has_stopped_is_followed_no_further(run_dir: Path):
    assert main(["export", str(run_dir), "--to", "tensorboard", "--follow"]) == 0
    assert len(read_events(run_dir / "tensorboard")) == 3


def test_a_place_that_cannot_be_written_is_one_sentence(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    out = run_dir / METRICS / "table.csv"
    assert main(["export", str(run_dir), "--to", "csv", "--out", str(out)]) == 2
    assert f"({out.parent})" in capsys.readouterr().err


def test_a_table_has_a_row_for_each_step(run_dir: Path):
    assert main(["export", str(run_dir), "--to", "csv"]) == 0
    with (run_dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["learner/loss"], row["tokens_sampled"]) for row in rows] == [
        ("0", "-1.25", "1000"),
        ("1", "-1.25", "2000"),
    ]


@pytest.mark.parametrize("to", ["tensorboard", "csv"])
def test_a_run_without_a_step_is_said(run_dir: Path, capsys: pytest.CaptureFixture[str], to: str):
    (run_dir / METRICS).unlink()
    (run_dir / EVENTS).unlink()
    assert main(["export", str(run_dir), "--to", to]) == 2
    assert "metrics.jsonl holds no step yet" in capsys.readouterr().err
    assert main(["export", str(run_dir / ".."), "--to", to]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
