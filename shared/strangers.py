"""A database is a run's when it is empty or holds runs alone: what else lies there is somebody's, and left in peace."""

from itertools import islice

from shared.config import without_password
from shared.errors import UserError
from shared.redis_client import connect
from shared.streams import Keys

LOOKED_AT = 100_000  # keys, at most


def refuse_strangers(url: str, run: str, *, new: bool) -> None:
    """UserError for a database with keys of something else, or, for a `new` run, with an older run of its name.

    A run that goes on was accepted once and is not asked.
    """
    client, shown = connect(url), without_password(url)
    try:
        if client.exists(Keys(run).state):
            if new:
                raise UserError(
                    f"Redis at {shown} holds a run named '{run}' already: choose another run.name, "
                    "or continue that one with `headrace up --resume`."
                )
            return
        for key in islice(client.scan_iter(count=1000), LOOKED_AT):
            if not key.startswith(b"headrace:"):
                name = key[:40].decode(errors="replace")
                raise UserError(
                    f"Redis at {shown} holds {client.dbsize()} keys, and '{name}' is none of ours: name an empty "
                    "database, such as another number at the end of redis.url."
                )
    finally:
        client.close()
