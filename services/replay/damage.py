"""Entries of replay's tables that nobody can read: the first transaction behind the load that found them takes them out
of Redis, keeps them as dead letters, says so, and gives up what is lost with them.

    tasks, fresh       a training task counts as lost, so that another takes its place; a question as failed
    fresh, buffer,     the payload is deleted at the checkpoint behind which nobody needs it
    retired
    batches            the learner says where it is, as after every load, and replay goes on from there
    evals, kept        nothing: an outcome is left out of its round, a prompt is not asked again
"""

import re

from services.replay import evaluation
from services.replay.state import State, Transaction
from shared.events import plain
from shared.streams import bury

LETTERS = 100  # dead letters of one load: more of them would say nothing more
NAMED = 5
_TRAIN, _EVAL = re.compile(r"t(\d{8,10})"), re.compile(r"e(\d{8,10})-(\d{6,10})")


def mend(state: State, tx: Transaction) -> None:
    """See above; where nothing is damaged it does nothing."""
    damaged, state.damaged = state.damaged, []
    for each in damaged[:LETTERS]:
        source = plain(f"replay:{each.table}:{each.field.decode(errors='replace')}", 100)
        bury(tx.pipe, tx.keys, source, each.reason, each.data)
    for table in sorted({each.table for each in damaged}):
        here = [each for each in damaged if each.table == table]
        names = [each.field.decode(errors="replace") for each in here]
        tx.erase(table, [each.field for each in here])
        for name in names:
            _give_up(state, tx, table, name)
        tx.event("warning", service="replay", text=_told(table, names, here[0].reason))
    if damaged:
        evaluation.end_those_over(state, tx)


def _give_up(state: State, tx: Transaction, table: str, name: str) -> None:
    if table not in ("tasks", "fresh", "buffer", "retired") or _is_here(state, name):
        return
    if question := _EVAL.fullmatch(name):
        evaluation.lost(state, tx, *map(int, question.groups()))
        return
    if table != "tasks":
        tx.retire(name, 0)
    c, task = state.counters, _TRAIN.fullmatch(name)
    if task and table in ("tasks", "fresh") and (number := int(task[1])) < c.issued and number not in c.settled:
        c.lost += 1
        c.settled.add(number)


def _is_here(state: State, id: str) -> bool:
    """Whether another table has what is of this name."""
    return id in state.tasks or id in state.fresh or id in state.buffer or id in state.retired


def _told(table: str, names: list[str], reason: str) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    which = plain(", ".join(name[:40] for name in names[:NAMED])) + more
    what = "an entry" if len(names) == 1 else f"{len(names)} entries"
    return f"{what} of replay:{table} cannot be read and is left out ({which}), since {plain(reason)}."
