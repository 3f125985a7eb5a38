"""Processes that are asked for rewards, and those of them that never come up."""

from pathlib import Path

import pytest

from shared.workers import HANGS_S, NotAnswered, Pool, Worker

HANGS_ONCE = """
import pathlib, sys, time

mark = pathlib.Path(__file__).with_name("started")
if not mark.exists():
    mark.touch()
    time.sleep(600)
for line in sys.stdin:
    print("{}", flush=True)
"""


def test_a_worker_that_hangs_for_ever_while_it_starts_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hangs_once.py").write_text(HANGS_ONCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pool = Pool(lambda: Worker("hangs_once"), 1)

    def ask(patience_s: float) -> Worker:
        with pool.worker(patience_s) as worker:
            asked.append(worker)
            worker.answer({}, 60, patience_s)
        return worker

    asked: list[Worker] = []
    try:
        while not (tmp_path / "started").exists():
            with pytest.raises(NotAnswered):
                ask(0.05)
        assert len(set(map(id, asked))) == 1 and asked[0].alive(), "it may only be slow"
        asked[0]._began -= HANGS_S
        with pytest.raises(NotAnswered):
            ask(0.0)
        assert not asked[0].alive()
        assert ask(60) is not asked[0]
    finally:
        pool.stop()
