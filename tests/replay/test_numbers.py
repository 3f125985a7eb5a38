"""The set of settled task numbers against a plain set, and that it stays small."""

import random

import pytest

from services.replay.numbers import Settled
from services.replay.records import Counters
from services.replay.state import Store
from tests.replay.test_resync import Run


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_set_of_numbers(seed: int) -> None:
    rng, settled, plain = random.Random(seed), Settled(), set()
    for number in range(400):
        chosen = max(0, number + rng.randint(-12, 12))
        settled.add(chosen)
        plain.add(chosen)
    assert [n for n in range(450) if n in settled] == sorted(plain)
    assert settled.above == sorted(settled.above)


def test_numbers_that_are_settled_nearly_in_order_take_no_room() -> None:
    rng, settled, waiting = random.Random(0), Settled(), []
    for number in range(10_000):
        waiting.append(number)
        if len(waiting) > 16:
            settled.add(waiting.pop(rng.randrange(16)))
    assert len(settled.above) < 200
    assert settled.below + len(settled.above) == 10_000 - len(waiting)


def test_all_but_the_open_ones() -> None:
    settled = Settled()
    settled.all_but(9, [4, 7])
    assert [n for n in range(12) if n in settled] == [0, 1, 2, 3, 5, 6, 8]
    settled.all_but(3, [])
    assert (settled.below, settled.above) == (3, [])


async def test_a_run_keeps_no_more_than_what_is_out_of_order(make_config) -> None:
    run = Run(make_config(run={"steps": 20}, replay={"max_lag": 2, "policy": "none"}))
    run.actors[0].fail_share = 0.3
    await run.trained(10**9)
    await run.close()
    counters: Counters = (await Store(run.client, run.keys).load(0.0)).counters
    assert (counters.settled.below, counters.settled.above) == (counters.issued, [])
    assert counters.trained_twice == 0
