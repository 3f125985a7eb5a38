"""Whether a Redis that answers can hold a run: a primary, a user who may write its keys, and no key of another type."""

from typing import Any

import redis

from shared.config import without_password
from shared.errors import UserError
from shared.redis_client import connect, refusal, will_pass
from shared.streams import Keys

_WRITES = (
    "return redis.call('DEL', KEYS[1])"  # of a key that is not there: needs the right to write, and leaves nothing
)


def refuse_unusable(url: str, run: str) -> None:
    """UserError where the server would take nothing of this run, whatever is waited for."""
    shown, keys = without_password(url), Keys(run)
    streams = (keys.tasks, keys.groups, keys.work, keys.results, keys.weights, keys.events, keys.dead)
    types = dict.fromkeys(streams, b"stream") | {keys.actors: b"set", keys.state: b"string", keys.replay: b"string"}
    try:
        with connect(url) as client:
            now: Any = client.info("replication")
            if now["role"] == "slave":
                raise UserError(
                    f"Redis at {shown} is a read-only replica, which stores nothing of a run: put its primary, "
                    f"{now['master_host']}:{now['master_port']}, into redis.url."
                )
            for key, wanted in types.items():
                found: Any = client.type(key)
                if found not in (wanted, b"none"):
                    raise UserError(
                        f"Redis at {shown}: {key} is a {found.decode()}, and a run keeps a {wanted.decode()} there: "
                        "delete the key, or choose another run.name."
                    )
            client.eval(_WRITES, 1, keys.prefix + "probe")
    except redis.RedisError as error:
        if sentence := refusal(error, f"Redis at {shown}"):
            raise UserError(sentence) from None
        if not will_pass(error):
            raise
