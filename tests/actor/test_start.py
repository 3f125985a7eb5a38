"""An engine that does not come up is noticed, and a slow one is spoken of meanwhile."""

import asyncio
import logging

import pytest

from services.actor import heartbeat
from services.actor.engines.engine import EngineFailed
from tests.actor.scripted_engine import ScriptedEngine


class Slow(ScriptedEngine):
    """Takes its time to start."""

    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        super().__init__(lambda ids, sampling: ([], "eos"))
        self.seconds, self.error, self.given_up = seconds, error, False

    async def start(self) -> None:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.given_up = True
            raise
        if self.error:
            raise self.error


async def test_an_engine_that_does_not_start_is_given_up() -> None:
    engine = Slow(100)
    with pytest.raises(EngineFailed, match=r"the scripted engine has not loaded the model within 0\.2 s"):
        await heartbeat.start_engine(engine, 0.2)
    assert engine.given_up


async def test_a_slow_start_is_spoken_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(heartbeat, "SLOW_START_S", 0.1)
    with caplog.at_level(logging.INFO, "headrace"):
        await heartbeat.start_engine(Slow(0.4), 1.0)
    assert caplog.messages == ["loading the model since 0 s"]


async def test_what_a_start_raises_is_raised_and_a_cancelled_one_is_cancelled() -> None:
    with pytest.raises(ValueError, match="no such model"):
        await heartbeat.start_engine(Slow(0.0, ValueError("no such model")))
    engine = Slow(100)
    starting = asyncio.create_task(heartbeat.start_engine(engine))
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert engine.given_up
