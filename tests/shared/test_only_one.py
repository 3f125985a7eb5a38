"""One learner and one replay a run: a second one is refused while the first lives, and takes a dead one's place."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from shared.config import build
from shared.errors import UserError
from shared.only_one import OnlyOne, wait_until_begun

Make = Callable[..., OnlyOne]


@pytest.fixture
def make(redis_url: str) -> Iterator[Make]:
    made: list[OnlyOne] = []

    def only(run: str = "one", database: int = 0, silent_s: float = 60.0) -> OnlyOne:
        config = build({"run": {"name": run}, "redis": {"url": redis_url.removesuffix("0") + str(database)}})
        made.append(OnlyOne(config, "learner", silent_s=silent_s))
        return made[-1]

    yield only
    for one in made:
        one.leave()


def names(client: Any) -> int:
    return sum(c["name"].startswith("headrace:one:learner:") for c in client.client_list())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def begin(only: OnlyOne) -> None:
    wait_until_begun(only, time.sleep)


@pytest.mark.slow
def test_a_second_one_is_refused_while_the_first_lives_and_begins_when_it_has_left(make: Make, redis_url: str) -> None:
    first = make()
    begin(first)
    with redis.Redis.from_url(redis_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)  # as a server that starts again does
        wait_for(lambda: names(client) == 1)
        with pytest.raises(UserError, match=r"^another learner of run 'one' is at work \(\S+-\d+\): stop that one"):
            begin(make())
        begin(make(run="another"))
        begin(make(database=1))
        first.leave()
        begin(make())
        wait_for(lambda: names(client) == 2)  # of either database


@pytest.mark.slow
def test_one_that_hangs_is_replaced_and_one_that_has_just_died_is_waited_for(make: Make, redis_url: str) -> None:
    spoke = time.monotonic()
    with redis.Redis.from_url(redis_url) as hung:
        hung.client_setname("headrace:one:learner:host-1")
        begin(make(silent_s=3.0))
    assert time.monotonic() - spoke > 2, "it could have spoken meanwhile"


def test_where_the_server_tells_of_nobody_nobody_is_refused(make: Make, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as owner:
        owner.client_setname("headrace:one:learner:host-1")
        owner.execute_command("ACL", "SETUSER", "blind", "on", ">x", "~*", "+@all", "-client")
        try:
            address = redis_url.rpartition("@")[2]
            blind = OnlyOne(build({"run": {"name": "one"}, "redis": {"url": f"redis://blind:x@{address}"}}), "learner")
            assert blind.try_begin()
            blind.leave()
        finally:
            owner.execute_command("ACL", "DELUSER", "blind")
