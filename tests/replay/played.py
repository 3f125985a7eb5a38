"""Steps of a recording through replay's own transitions, one after the other, with no process and no server.

The transactions are real, but their commands are never sent: what is looked at is the state in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import redis

from services.replay import transitions
from services.replay.buffer import StoredGroup
from services.replay.policies import Moment, Policy
from services.replay.records import Composed, Counters, FreshGroup
from services.replay.selection import Selection, groups_wanted
from services.replay.state import State, Transaction
from shared.config import Config
from shared.messages import GroupHeader, Record, Trained
from shared.seeds import derive
from shared.streams import Keys
from shared.versions import Version
from tests.replay.recording import Recording

QUESTIONS = 500


@dataclass
class Played:
    """What one step did. `before`: the buffer it chose from, oldest first; `after`: the ids it left there."""

    step: int
    seed: int
    fresh: list[GroupHeader]
    before: list[StoredGroup]
    selection: Selection
    batch: Composed
    scanned: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


def play(
    config: Config,
    policy: Policy,
    recording: Recording,
    steps: int,
    replayed: Callable[[str, int], Record] | None = None,
) -> Iterator[Played]:
    """The first `steps` steps of a run of this policy on the recorded groups.

    replayed: the learner's record of a replayed group as the step trained it; None: it tells of fresh ones alone.
    """
    state = State(Counters(started=0.0, version=Version(0, 0), fingerprints=recording.fresh(0)[0].fingerprints))
    pipe = redis.Redis().pipeline()  # connects to nothing until it is executed
    tx = Transaction(state, Keys("played"), pipe)
    for step in range(steps):
        pipe.reset()
        fresh = recording.fresh(step)
        for header in fresh:
            tx.put("fresh", header.id, FreshGroup(header, due=step))
        before = list(state.buffer)
        seed = derive(config.run.seed, 2, step)
        selection = Selection(policy, state.buffer, groups_wanted(policy, config), config.replay.tau,
                              config.replay.scan_chunk, Moment(step, seed), config.rollout.group_size)  # fmt: skip
        scanned: list[str] = []
        while ids := selection.next_scan():
            scanned += ids
            selection.take([recording.scanned(id, step) for id in ids], 0.0)
            if selection.done:
                break
        transitions.batch_composed(config, state, tx, selection, [h.id for h in fresh], 0.0)
        seen = Played(step, seed, fresh, before, selection, state.batches[step], scanned)
        records = [recording.trained(id) for id in seen.batch.fresh]
        if replayed is not None:
            records = [*(replayed(id, step) for id in seen.batch.replay), *records]
        done = Trained(step=step, version=Version(0, step + 1), records=records, rejected=[], metrics={})
        transitions.step_trained(config, state, tx, policy, QUESTIONS, done, 1.0)
        tx.drop("batches", str(step))
        seen.after = [row.id for row in state.buffer]
        yield seen
