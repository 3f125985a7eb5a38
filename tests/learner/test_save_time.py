"""A stop begins a checkpoint only where the last one says that there is time for it."""

from services.learner.weights.save_time import SPREAD, SYNC, SaveTime


def test_before_the_first_checkpoint_its_time_is_that_of_the_weights_byte_for_byte() -> None:
    time = SaveTime(7_000)
    assert time.expected_s == float("inf")
    time.published(2.0, 1_000)
    assert time.expected_s == SPREAD * SYNC * 14.0


def test_the_last_checkpoint_says_more_than_the_weights() -> None:
    time = SaveTime(7_000)
    time.published(2.0, 1_000)
    time.saved(5.0)
    time.published(90.0, 1_000)
    assert time.expected_s == SPREAD * 5.0
