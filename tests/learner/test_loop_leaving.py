"""How the loop ends: at Finish, and at a signal, which finds saved what is trained."""

import time
from typing import Any

import pytest
import torch

from services.learner.loop import Loop
from services.learner.stop import Stop, Stopped
from services.learner.weights import checkpoint
from shared.config import Config
from shared.messages import (
    Checkpointed,
    Finish,
)
from shared.versions import Version
from tests.learner.fed import CURSOR, Feed, batch, of_steps, pending, results, start, state_of, work_off

pytestmark = pytest.mark.slow


def stop_in_update(loop: Loop, number: int) -> None:
    """A signal that comes just after this update of the weights, the first is 0; `ask` would end this process."""
    update, left = loop.trainer.optimiser.step, [number]

    def then_stop(step: int) -> Any:
        done = update(step)
        if left[0] == 0:
            loop.stop._asked.set()
        left[0] -= 1
        return done

    loop.trainer.optimiser.step = then_stop


def test_a_signal_between_steps_finds_them_saved(config: Config, client: Any, feed: Feed) -> None:
    loop = Loop(config, Stop())
    feed(batch(0))
    stop_in_update(loop, 0)
    with pytest.raises(Stopped):
        loop.run()
    assert results(client)[-1] == Checkpointed(version=Version(0, 1), step=1)
    assert pending(client) == 0
    again = start(config)
    assert (again.step, again._cursor) == (1, CURSOR)
    assert all(map(torch.equal, state_of(again), state_of(loop)))


def test_a_signal_within_a_step_saves_the_step_before_it(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    work_off(loop)
    before = state_of(loop)
    loop.stop._asked.set()
    feed(batch(1))
    with pytest.raises(Stopped):
        loop.run()
    assert results(client)[-1] == Checkpointed(version=Version(0, 1), step=1)
    assert pending(client) == 1, "batch 1, which was not trained"
    assert all(map(torch.equal, state_of(Loop(config, Stop())), before))


def test_a_signal_between_the_updates_of_a_step_saves_nothing(config: Config, client: Any, feed: Feed) -> None:
    learner = config.learner.model_copy(update={"mini_batch": 1})
    loop = Loop(config.model_copy(update={"learner": learner}), Stop())
    feed(batch(0))
    feed(batch(1))
    stop_in_update(loop, 2)
    with pytest.raises(Stopped):
        loop.run()
    assert loop.step == 1
    assert results(client, Checkpointed) == []
    assert pending(client) == 2


def test_finish_saves_acknowledges_and_ends(config: Config, client: Any, feed: Feed) -> None:
    loop = start(of_steps(config, 1))
    feed(batch(0))
    feed(Finish())
    entries = loop.inbox.read(2)
    assert [loop.handle(e) for e in entries] == [False, True]
    assert results(client)[-1] == Checkpointed(version=Version(0, 1), step=1)
    assert pending(client) == 0
    assert checkpoint.steps(config.checkpoints_dir) == [1]


def test_a_finish_that_was_not_acknowledged_ends_the_next_life(config: Config, client: Any, feed: Feed) -> None:
    loop = start(of_steps(config, 1))
    feed(batch(0))
    work_off(loop)
    feed(Finish())
    loop.inbox.read(1)  # and dies
    again = Loop(of_steps(config, 1), Stop())
    again.run()
    assert pending(client) == 0


def test_a_finish_from_before_the_run_was_given_more_steps_is_passed_over(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(of_steps(config, 2))
    feed(Finish())
    feed(batch(0))
    assert [loop.handle(e) for e in loop.inbox.read(2)] == [False, False]
    assert loop.step == 1


@pytest.mark.parametrize(("takes_s", "saved"), [(1.0, True), (40.0, False)])
def test_a_signal_saves_where_a_checkpoint_takes_less_than_is_left(
    config: Config, client: Any, feed: Feed, takes_s: float, saved: bool
) -> None:
    loop = Loop(config, Stop(grace_s=31.0))
    loop._saving._save_time.saved(takes_s)
    feed(batch(0))
    stop_in_update(loop, 0)
    loop.stop._until = time.monotonic() + loop.stop._patience_s
    with pytest.raises(Stopped):
        loop.run()
    assert checkpoint.steps(config.checkpoints_dir) == ([1] if saved else [])
    assert pending(client) == (0 if saved else 1)
