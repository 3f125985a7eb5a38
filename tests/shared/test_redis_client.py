"""How connections are opened."""

from typing import Any

import pytest
from redis import Redis

from shared.errors import UserError
from shared.redis_client import connect, connect_async


async def test_a_connection_says_nothing_that_is_not_needed_so_that_no_answer_is_taken_for_another(
    redis_url: str,
) -> None:
    with Redis.from_url(redis_url) as other, connect(redis_url) as client:
        other.config_resetstat()
        client.ping()
        waiting = connect_async(redis_url)
        await waiting.ping()
        await waiting.aclose()
        commands: Any = other.info("commandstats")
        said = {name.removeprefix("cmdstat_") for name in commands}
        assert "ping" in said and not any(name.startswith("client") for name in said), said
        # a server before 7.2 knows none of it; one try each is for maintenance notices, whose answer is waited for
        errors: Any = other.info("errorstats")
        assert errors.get("errorstat_ERR", {"count": 0})["count"] <= 2


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "redis://:secret@h:abc/0",
        "redis://:secret@h:99999",
        "redis://[::1/0",
        "redis://a..b:6379/0",
        "redis://h:6379/0?foo=bar",
        "redis://:a/secret@h:6379/0",
        "rediss://:secret@h:1/0?ssl_cert_reqs=foo",
    ],
)
@pytest.mark.parametrize("make", [connect, connect_async])
def test_what_is_no_address_is_said_in_a_sentence_without_the_password(make: Any, url: str) -> None:
    with pytest.raises(UserError, match=r"is not a Redis address: write redis://\[:password@\]host:port/0") as error:
        make(url)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_a_service_without_an_address_is_told_where_to_put_one() -> None:
    with pytest.raises(UserError, match=r"^redis\.url is empty, .*: set HEADRACE_REDIS__URL to redis://"):
        connect("")
