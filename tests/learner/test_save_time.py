"""A stop begins a checkpoint only where the last one says that there is time for it."""

import errno
from typing import Any

import pytest

from services.learner.weights.save_time import SPREAD, SYNC, SaveTime
from shared.config import Config
from tests.learner.fed import Feed, batch, start, work_off


def test_before_the_first_checkpoint_its_time_is_that_of_the_weights_byte_for_byte() -> None:
    save_time = SaveTime(7_000)
    assert save_time.expected_s == float("inf")
    save_time.published(2.0, 1_000)
    assert save_time.expected_s == SPREAD * SYNC * 14.0


def test_the_last_checkpoint_says_more_than_the_weights() -> None:
    save_time = SaveTime(7_000)
    save_time.published(2.0, 1_000)
    save_time.saved(5.0)
    save_time.published(90.0, 1_000)
    assert save_time.expected_s == SPREAD * 5.0


WAIT_S = 1.5


@pytest.mark.parametrize(("what", "heard"), [("publish", "published"), ("save", "saved")])
@pytest.mark.alone
def test_a_wait_for_room_is_no_part_of_it(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch, what: str, heard: str
) -> None:
    monkeypatch.setattr("services.learner.talk.patience.RETRY_S", WAIT_S)
    loop = start(config)
    seconds, write, tries = [], getattr(loop._executor, what), []

    def on_a_full_disk(*given: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "no room")
        write(*given)

    monkeypatch.setattr(loop._executor, what, on_a_full_disk)
    monkeypatch.setattr(SaveTime, heard, lambda self, took, *size: seconds.append(took))
    for step in range(config.learner.checkpoint_every):
        feed(batch(step))
    work_off(loop)
    assert len(tries) == len(seconds) + 1 and seconds
    assert max(seconds) < WAIT_S
