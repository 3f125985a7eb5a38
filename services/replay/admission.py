"""How many rollouts may be started, and which fresh groups a step takes, so that none is trained later than it may be.

Symbols: b fresh groups per step, L = max_lag, w = the published version's number; step s trains version s into s + 1.

A task is issued while fewer than (L + 1) b are open: with an actor, or arrived and untrained. The version w published
when it is issued is the lowest it may be sampled under, so its group is within the bound when it is trained at a step
s <= w + L: its DUE step.

Worked example, b = 2, L = 1: at w = 0 tasks 0..3 are issued, all due at step 1; step 0 takes any two of them; w = 1
issues 4 and 5, due at step 2; step 1 must take the two left over, and waits for them although 4 or 5 may be there
first.

Waiting suffices because of what `choose_fresh` keeps true: what is untrained and due by t is at most (t - s) b after
step s, the room that the steps up to t still have. docs/design.md, section 7, has the proof.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Fresh(NamedTuple):
    """A group that has arrived and is not trained yet, in the order steps take them."""

    due: int
    number: int
    id: str


def tasks_to_issue(untrained: int, version: int, batch: int, max_lag: int, steps: int) -> int:
    """How many new tasks may start now; no more than `steps` steps train.

    untrained: tasks that are out, and groups that have arrived and are in no trained batch.
    """
    return max(0, min(max_lag + 1, steps - version) * batch - untrained)


def choose_fresh(arrived: Iterable[Fresh], running: Iterable[int], step: int, batch: int) -> list[Fresh] | None:
    """The `batch` groups step `step` takes, earliest due first; None: wait.

    running: due steps of the tasks that have not come back. It waits while there are too few groups, or while taking
    these would leave more due by some step than the steps up to it can train, which only a running task can cure.
    """
    queue = sorted(arrived)
    if len(queue) < batch:
        return None
    chosen, rest = queue[:batch], [fresh.due for fresh in queue[batch:]]
    for place, due in enumerate(sorted(running), start=1):
        if place + bisect_right(rest, due) > max(0, due - step) * batch:
            return None
    return chosen
