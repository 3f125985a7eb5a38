"""Connections to Redis with the time limits this system relies on.

A blocking stream read asks the server to wait BLOCK_MS; the socket gives up well after that, so a quiet stream is never
mistaken for a dead server, and a dead server is always noticed. The library never retries by itself: a stream read
whose reply was lost has delivered its entries, and a silent second read would leave them pending for ever. Callers
repeat what they may repeat, and `Inbox` asks for its pending entries again after any error.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import AuthorizationError, NoPermissionError, OutOfMemoryError
from redis.retry import Retry

from shared.config import without_password
from shared.errors import UserError

BLOCK_MS = 1000
SOCKET_TIMEOUT_S = 20.0
TRY_S = 0.3
PAYLOAD_SHARE = 0.9  # of the server's memory limit; the rest is for messages
WEIGHTS_SHARE = 0.95  # the same for weights that travel through it, which no payload may keep from coming
SHORT_SHARE = 0.8
ANSWER_S = 3.0
MINIMUM_VERSION = (6, 2)  # XAUTOCLAIM

_OPTIONS: dict = {
    "socket_timeout": SOCKET_TIMEOUT_S,
    "socket_connect_timeout": 5.0,
    "health_check_interval": 15,
    # the library would tell its name on connecting; where that is slow it takes the answer for that of a health check
    "driver_info": None,
}


def connect(url: str, answer_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """A client for threads and the learner; a request is given up after `answer_s`. Does not touch the network yet."""
    options = _options(url) | {"socket_timeout": answer_s}
    return redis.Redis.from_url(_checked(url), retry=Retry(NoBackoff(), 0), **options)


def connect_async(url: str) -> redis.asyncio.Redis:
    """A client for an event loop. Does not touch the network yet."""
    return redis.asyncio.Redis.from_url(_checked(url), retry=AsyncRetry(NoBackoff(), 0), **_options(url))


# BusyLoadingError is a ConnectionError: a server that reads its file in counts as away
AWAY = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, OSError)


class RedisAway(UserError):
    """The server does not answer."""

    def __init__(self, url: str, wait_s: float, error: redis.RedisError) -> None:
        self.error = error
        cause = str(error).rstrip(".").replace(". ", ": ")  # one sentence out of several
        shown = without_password(url)
        super().__init__(f"Redis at {shown} did not answer within {wait_s:g} s ({cause}): start it, or mend redis.url.")


async def until_up(url: str, wait_s: float) -> None:
    """`wait_until_up` for an event loop, in tries so short that a service told to stop leaves at once."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return await asyncio.to_thread(wait_until_up, url, TRY_S)
        except RedisAway as away:
            if time.monotonic() >= deadline:
                raise RedisAway(url, wait_s, away.error) from None


def wait_until_up(url: str, wait_s: float) -> None:
    """Return once the server answers and can be used; UserError says what is wrong otherwise."""
    # one that takes a connection and is silent, as a stopped process does, must not hold up who is told to leave
    client = connect(url, ANSWER_S)
    deadline = time.monotonic() + wait_s
    shown = without_password(url)
    try:
        while True:
            try:
                server: Any = client.info("server")
                memory: Any = client.info("memory")
                break
            except redis.RedisError as error:
                if sentence := refusal(error, f"Redis at {shown}"):
                    raise UserError(sentence) from None
                if not isinstance(error, AWAY):
                    cause = str(error).rstrip(".").replace(". ", ": ")
                    raise UserError(
                        f"what answers at {shown} is no Redis for a run ({cause}): mend redis.url."
                    ) from None
                last = error
            if time.monotonic() >= deadline:
                raise RedisAway(url, wait_s, last) from None
            time.sleep(0.1)
    finally:
        client.close()
    version, policy = server["redis_version"], memory.get("maxmemory_policy", "noeviction")
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        raise UserError(f"Redis at {shown} is version {version}, and XAUTOCLAIM needs {needed} or newer: upgrade it.")
    if memory.get("maxmemory") and policy != "noeviction":
        raise UserError(
            f"Redis at {shown} drops keys when it is full (maxmemory-policy {policy}), and a run would lose what it "
            "has not trained yet: set it to noeviction."
        )


# why a service waits for Redis, for its metrics and for people
SPOKEN = {
    "away": "Redis",
    "replica": "Redis, which is a read-only replica now",
    "memory": "Redis, which is full",
    "disk": "Redis, which refuses writes until it can add to its append-only file",
}


def why_waited_for(error: BaseException) -> str:
    """A key of SPOKEN."""
    if isinstance(error, redis.ReadOnlyError):
        return "replica"
    if not isinstance(error, Exception) or not is_full(error):
        return "away"
    return "disk" if is_short_of_disk(error) else "memory"


def refusal(error: BaseException, server: str = "Redis") -> str | None:
    """A sentence, where the server refuses password or user, forbids this, or holds another's key; else None."""
    if isinstance(error, redis.AuthenticationError):
        return f"{server} refuses the password: put the right one into redis.url."
    if isinstance(error, AuthorizationError | NoPermissionError) or "executing the script can't run" in str(error):
        cause = str(error).rstrip(".")
        return f"{server} forbids the user of redis.url what a run does ({cause}): allow it all commands and keys."
    if isinstance(error, Exception) and _says(error, "WRONGTYPE"):
        return (
            f"{server} holds something else under one of the run's keys (WRONGTYPE): delete what others wrote there "
            "(TYPE tells of which kind a key is), and start what has stopped again."
        )
    return None


def will_pass(error: Exception) -> bool:
    """Whether the call may be made again until it is taken: the server is away, starts, or has no room."""
    return refusal(error) is None and (isinstance(error, AWAY) or is_full(error))


def is_full(error: Exception) -> bool:
    """Whether the server refused a write for want of memory or disk. A script's error says so in its middle."""
    return isinstance(error, OutOfMemoryError) or is_short_of_disk(error) or _says(error, "OOM")


def is_short_of_disk(error: Exception) -> bool:
    """Whether the server refuses all writes because it cannot add to its append-only file."""
    return _says(error, "MISCONF")


def _says(error: Exception, code: str) -> bool:
    return isinstance(error, redis.ResponseError) and code in str(error)


async def is_replica(client: redis.asyncio.Redis) -> bool:
    """Whether the server takes no writes since it follows another."""
    replication: Any = await client.info("replication")
    return replication["role"] == "slave"


def is_short_of_memory(client: redis.Redis) -> bool:
    """Whether payloads have filled their share of the server's memory, or nearly."""
    memory: Any = client.info("memory")
    return room(memory, SHORT_SHARE) < 0


def room(memory: Mapping[str, int], share: float) -> float:
    """Bytes until a share of the server's limit is used, by its INFO memory; infinite without a limit."""
    return memory["maxmemory"] * share - memory["used_memory"] if memory["maxmemory"] else math.inf


def _options(url: str) -> dict:
    return _OPTIONS if url.startswith("unix://") else _OPTIONS | {"socket_keepalive": True}  # TCP's own


def _checked(url: str) -> str:
    if not url:
        raise UserError(
            "redis.url is empty, and a service that is started alone needs the address of a Redis: set "
            "HEADRACE_REDIS__URL to redis://[:password@]host:port/0 (`headrace up` starts a server for its own)."
        )
    try:
        pool = redis.ConnectionPool.from_url(url)
        pool.connection_class(**pool.connection_kwargs)  # an option that it does not know is found out here
        pool.connection_kwargs.get("host", "").encode("idna")  # and here a name that no resolver takes
    except (ValueError, TypeError, redis.RedisError):
        raise UserError(
            f"redis.url = '{without_password(url)}' is not a Redis address: write redis://[:password@]host:port/0, "
            "where / ? # and % of the password are %2F %3F %23 and %25."
        ) from None
    return url
