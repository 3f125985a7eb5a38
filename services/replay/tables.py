"""The entries of replay's tables as they lie in Redis: typed, and checked, so that the state holds nothing that replay
could not have written. What becomes of the others: services/replay/damage.py.
"""

import math
from typing import Any, NamedTuple

import msgspec

from services.replay.buffer import StoredGroup
from services.replay.kept import Kept
from services.replay.records import Composed, Counters, FreshGroup, Outcome, Retired
from shared.events import check_step
from shared.messages import MOST_OPEN, UNREADABLE, Malformed, Task, check

KINDS = {
    "tasks": Task,
    "fresh": FreshGroup,
    "buffer": StoredGroup,
    "batches": Composed,
    "retired": Retired,
    "evals": Outcome,
    "kept": Kept,
}
_decoders = {table: msgspec.msgpack.Decoder(kind) for table, kind in KINDS.items()}
_LARGEST = 1e30  # of a mean or a sum over a group
_counters = msgspec.json.Decoder(Counters)


class Damaged(NamedTuple):
    """An entry that cannot be read, and why."""

    table: str
    field: bytes
    data: bytes
    reason: str


def entry(table: str, field: bytes, data: bytes) -> tuple[str, Any]:
    """The name and the value of an entry. Raises Malformed."""
    try:
        name, value = field.decode(), _decoders[table].decode(data)
    except UNREADABLE as error:
        raise Malformed(str(error)) from None
    match value:
        case Task():
            check(value)
            own = value.id
        case FreshGroup():
            check(value.header)
            own = value.header.id
        case StoredGroup():
            _check_row(value)
            own = value.id
        case Composed():
            _check_batch(value)
            own = str(value.step)
        case Kept():
            if not (value.scored or value.retired):
                raise Malformed("a prompt without responses")
            own = str(value.question)
        case _:
            own = name
    if own != name:
        raise Malformed(f"it is of {own!r:.50}")
    return name, value


def counters(data: bytes) -> Counters:
    """replay:state. Raises Malformed."""
    try:
        c = _counters.decode(data)
    except UNREADABLE as error:
        raise Malformed(str(error)) from None
    numbers = [n for name in c.__struct_fields__ if name != "asked_again" and isinstance(n := getattr(c, name), int)]
    numbers += [c.asked_again + 1, c.settled.below, *c.settled.above, *c.evals, *c.evals_done]
    numbers += [*c.evals_next, *c.evals_next.values(), *(c.version or ())]
    if not all(0 <= n < 2**62 for n in numbers) or max(c.step, c.issued, *(c.version or ())) >= 2**31:
        raise Malformed("a number that no run comes to")
    if c.settled.above != sorted(set(c.settled.above)) or c.issued - c.settled.below > MOST_OPEN:
        raise Malformed("settled tasks that are not those of a run")
    return c


def _check_batch(batch: Composed) -> None:
    """What is said of it when it is trained must be an event of a step."""
    check(batch.message)
    if not {"acceptance", "correct_share", "tokens_sampled"} <= batch.stats.keys():
        raise Malformed("a batch without its statistics")
    check_step(batch.stats)


def _check_row(row: StoredGroup) -> None:
    means = [row.drift, row.reward_mean, row.reward_std, row.advantage, *row.responses]
    if not all(abs(x) <= _LARGEST or math.isnan(x) for x in means) or row.drift < 0:
        raise Malformed("a number that no group comes to")
