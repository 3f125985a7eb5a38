"""Events are read on by who can record them."""

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import redis

from cli.run.listener import Listener
from cli.run.recorder import EVENTS, METRICS, Recorder, read_records
from cli.run.view import RunView
from shared import events
from shared.cancellation import stop
from shared.config import build
from shared.errors import UserError
from shared.redis_client import connect_async
from shared.streams import FIELD, Keys


async def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_full_disk_is_said_and_waited_for(
    redis_url: str, tmp_path: Path, full_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    config = build({"run": {"name": "full", "root": str(tmp_path)}})
    config.run_dir.mkdir()
    with redis.Redis.from_url(redis_url) as client:
        for step in range(2):
            events.emit(client, Keys("full"), "step", step=step, steps=2)
    view, recorder = RunView("full", 2, time.time()), Recorder(config.run_dir)
    listener, reader = Listener(config, view, recorder), connect_async(redis_url)
    with full_disk(20):
        following = asyncio.ensure_future(listener.follow(reader))
        await _until(lambda: view.warning)
        assert str(config.run_dir) in view.warning and view.step == -1
    await _until(lambda: view.step == 1)
    await stop(following)
    recorder.close()
    await reader.aclose()
    assert [r["step"] for r in read_records(config.run_dir / EVENTS)] == [0, 1]


@pytest.mark.parametrize(
    "break_it, said",
    [
        (shutil.rmtree, "{} was moved or deleted while its run went on"),
        (lambda folder: (folder / METRICS).mkdir(), "{} cannot be written .*, and start it again"),
    ],
)
async def test_a_folder_that_a_person_must_mend_ends_the_watching(
    break_it: Callable[[Path], object], said: str, redis_url: str, tmp_path: Path
) -> None:
    config = build({"run": {"name": "gone", "root": str(tmp_path)}})
    config.run_dir.mkdir()
    with redis.Redis.from_url(redis_url) as client:
        events.emit(client, Keys("gone"), "step", step=0, steps=2)
    recorder, reader = Recorder(config.run_dir), connect_async(redis_url)
    listener = Listener(config, RunView("gone", 2, time.time()), recorder)
    break_it(config.run_dir)
    with pytest.raises(UserError, match=said.format(config.run_dir)):
        async with asyncio.timeout(20):
            await listener.follow(reader)
    recorder.close()
    await reader.aclose()


async def test_a_passing_error_of_a_network_folder_is_said_and_waited_for(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = build({"run": {"name": "stale", "root": str(tmp_path)}})
    config.run_dir.mkdir()
    with redis.Redis.from_url(redis_url) as client:
        events.emit(client, Keys("stale"), "step", step=0, steps=1)
    view, recorder = RunView("stale", 1, time.time()), Recorder(config.run_dir)
    listener, reader = Listener(config, view, recorder), connect_async(redis_url)
    add, failures = recorder.add, [OSError(errno.ESTALE, os.strerror(errno.ESTALE))]

    def fails_once(*record: Any) -> None:
        if failures:
            raise failures.pop()
        add(*record)

    monkeypatch.setattr(recorder, "add", fails_once)
    following = asyncio.ensure_future(listener.follow(reader))
    await _until(lambda: view.step == 0)
    assert "see what is wrong with its disk" in view.warning
    await stop(following)
    recorder.close()
    await reader.aclose()


async def test_what_an_emptied_server_says_is_recorded_once_though_its_clock_is_behind(
    redis_url: str, tmp_path: Path
) -> None:
    config = build({"run": {"name": "behind", "root": str(tmp_path)}})
    config.run_dir.mkdir()
    keys, reader = Keys("behind"), connect_async(redis_url)

    async def say(id: str, step: int) -> None:
        record = f'{{"kind":"step","time":{step}.5,"step":{step},"steps":9}}'
        await reader.xadd(keys.events, {FIELD: record}, id=id)

    view, recorder = RunView("behind", 9, time.time()), Recorder(config.run_dir)
    listener = Listener(config, view, recorder)
    await say("2000-0", 0)
    await say("3000-0", 1)
    following = asyncio.ensure_future(listener.follow(reader))
    await _until(lambda: view.step == 1)
    await reader.delete(keys.events)
    await say("2000-0", 0)  # what it had on disk
    await say("2500-0", 2)
    await _until(lambda: view.step == 2)
    await reader.delete(keys.events)
    await say("999-7", 3)
    await _until(lambda: view.step == 3)
    await say("999-8", 4)
    await _until(lambda: view.step == 4)
    await stop(following)
    recorder.close()
    await reader.aclose()
    assert [r["step"] for r in read_records(config.run_dir / EVENTS)] == [0, 1, 2, 3, 4]
