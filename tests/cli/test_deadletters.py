"""`headrace deadletters` lists what a real Redis keeps of refused entries."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import redis

from cli.deadletters import _where_they_are
from cli.main import main
from cli.run import local_redis
from shared import streams
from shared.config import build
from shared.streams import DEAD_LETTERS_KEPT, Keys

KEYS = Keys("exp7")


@pytest.fixture
def target(redis_url: str) -> list[str]:
    """The words that mean the run, which has three letters; a stranger wrote the last."""
    with redis.Redis.from_url(redis_url) as client:
        streams.bury(client, KEYS, "groups", "not a valid message: truncated", b"\xc1" * 100)
        streams.bury(client, KEYS, "learner:t00000007", "schema 9", b"payload")
        client.xadd(KEYS.dead, {"source": b"\x1b[2Jevil\n", "odd": "field"})
    return ["deadletters", "--redis", redis_url, "--run", "exp7"]


def test_each_is_told_with_its_source_reason_time_and_first_bytes(
    target: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(target) == 0
    said = capsys.readouterr().out
    assert "groups: not a valid message: truncated" in said
    assert "100 bytes kept, beginning '\\xc1\\xc1" in said
    assert "learner:t00000007: schema 9" in said
    assert "3 of 3 dead letters of exp7" in said
    assert "\x1b" not in said


def test_the_newest_come_first_and_no_more_than_asked_for(
    target: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*target, "-n", "2", "--json"]) == 0
    letters = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [letter["source"] for letter in letters] == [" [2Jevil ", "learner:t00000007"]
    assert letters[1] | {"id": "", "time": 0.0} == {
        "id": "",
        "time": 0.0,
        "source": "learner:t00000007",
        "reason": "schema 9",
        "bytes": 7,
        "begins": "'payload'",
    }
    assert main([*target, "-n", "0"]) == 2


def test_no_more_than_about_a_thousand_are_kept_each_of_a_bounded_size(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client, client.pipeline() as pipe:
        for _ in range(2 * DEAD_LETTERS_KEPT):
            streams.bury(pipe, KEYS, "groups", "r" * 10_000, b"x" * 100)
        streams.bury(pipe, KEYS, "groups", "r", b"x" * 200_000)
        pipe.execute()
        kept: Any = client.xlen(KEYS.dead)
        newest: Any = client.xrevrange(KEYS.dead, count=2)
    assert DEAD_LETTERS_KEPT <= kept < 1.2 * DEAD_LETTERS_KEPT
    assert [len(fields[b"data"]) for _, fields in newest] == [65_536, 100]
    assert len(newest[1][1][b"reason"]) == 500


def test_a_run_without_letters_and_one_that_does_not_run_are_said_plainly(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deadletters", "--redis", redis_url, "--run", "clean"]) == 0
    assert capsys.readouterr().out == "clean: no dead letters.\n"
    run_dir = tmp_path / "runs" / "x"
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").write_text(build({"run": {"name": "x", "root": str(run_dir.parent)}}).to_toml())
    local_redis.prepare(run_dir, 0)
    assert main(["deadletters", str(run_dir)]) == 2
    said = capsys.readouterr().err
    assert f"nothing runs for {run_dir}" in said and f"`headrace up --resume {run_dir}` starts it" in said
    (run_dir / "events.jsonl").write_text(
        '{"kind": "step", "time": 1, "step": 99}\n{"kind": "finished", "time": 2, "step": 100}\n'
    )
    (run_dir / "checkpoints" / "step_100").mkdir(parents=True)
    assert main(["deadletters", str(run_dir)]) == 2
    assert f"up --resume {run_dir}` with --run.steps 200, for example, trains on" in capsys.readouterr().err
    moved = shutil.move(run_dir, tmp_path / "elsewhere" / "x")
    assert f"up --resume {moved}` with --run.steps 200" in _where_they_are(str(moved))
