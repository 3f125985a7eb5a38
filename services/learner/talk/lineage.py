"""Which life of the learner this is, and how far the lives before it are saved: two numbers in Redis.

A learner that resumes opens a new lineage, since the same step trained again need not give the same bits.
"""

from typing import Any

from shared.errors import UserError
from shared.streams import Keys, count, saved_key


def saved_step(client: Any, keys: Keys) -> int:
    """Batches below this step are acknowledged and gone: no learner can begin before it, whatever its checkpoint."""
    return count(client.get(saved_key(keys)), saved_key(keys))


def lost_steps(step: int, first: int) -> dict[str, Any]:
    """The warning that the weights are those of `step` and no batch before step `first` is to be had any more."""
    lost = "1 trained step is" if first - step == 1 else f"{first - step} trained steps are"
    text = (
        f"the newest whole checkpoint is of step {step}, and the batches below step {first} are gone: "
        f"{lost} lost, going on at step {first} with the weights of step {step}."
    )
    return {"text": text, "lost_from": step, "lost_to": first}


def remember(pipe: Any, keys: Keys, lineage: int, saved: int) -> None:
    """Queue both numbers again, for a server that may have lost them."""
    pipe.set(lives_key(keys), lineage + 1)
    pipe.set(saved_key(keys), saved)


def open_lineage(client: Any, keys: Keys, last: int) -> int:
    """The number of this life of the learner: one more than the last that Redis or the checkpoint knows."""
    _lives(client, keys)  # else it could not be raised
    lineage = max(client.incr(lives_key(keys)) - 1, last + 1)
    client.set(lives_key(keys), lineage + 1)
    return lineage


def refuse_if_replaced(client: Any, keys: Keys, lineage: int) -> None:
    """Raise UserError where a later life has begun: each of two would take entries that are meant for the other."""
    if _lives(client, keys) > lineage + 1:
        raise UserError("another learner has taken over this run: this one leaves.")


def _lives(client: Any, keys: Keys) -> int:
    return count(client.get(lives_key(keys)), lives_key(keys))


def lives_key(keys: Keys) -> str:
    """How many lives there have been."""
    return keys.prefix + "lineage"
