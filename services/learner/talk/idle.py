"""What a learner says that has waited long for work: whether anybody makes groups, and since when nobody does."""

from typing import Any

from redis.exceptions import ResponseError

from shared import heartbeats
from shared.streams import Keys
from shared.waiting import FIRST_S


def waiting_text(client: Any, keys: Keys, step: int, waited_s: float, usual_s: float) -> tuple[str, bool]:
    """(a sentence, whether it is a warning): no group comes, and nobody is there to make one or it takes longer than
    `usual_s`. A step whose groups take minutes to make is nothing unusual.
    """
    alive = sum(beat is not None for beat in heartbeats.known(client, keys).values())
    since = _since_last_group(client, keys)
    last = "none has come yet" if since is None else f"the last one came {since:.0f} s ago"
    actors = "1 actor is alive" if alive == 1 else f"{alive or 'no'} actors are alive"
    text = f"the learner has waited {waited_s:.0f} s for work at step {step}: {actors}, and of groups {last}."
    return text, (since is None or since >= FIRST_S) and (not alive or waited_s > usual_s)


def _since_last_group(client: Any, keys: Keys) -> float | None:
    try:
        newest = int(client.xinfo_stream(keys.groups)["last-generated-id"].split(b"-")[0])
    except ResponseError:
        return None  # there is no such stream yet
    seconds, microseconds = client.time()
    return max(0.0, seconds + microseconds / 1e6 - newest / 1000) if newest else None
