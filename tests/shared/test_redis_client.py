"""How connections are opened."""

from typing import Any

from redis import Redis

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
