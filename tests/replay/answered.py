"""A run of replay's own transitions in which tasks are answered by recorded groups: no process, no server.

A task gets the outcome of the recorded group of its place in the order of asking, so the same questions in the same
order give the same run whatever the order of arrival, which is shuffled. The transactions are never sent.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import redis

from services.replay import again, transitions
from services.replay.buffer import StoredGroup
from services.replay.kept import Kept
from services.replay.policies import Moment, get_policy
from services.replay.records import Composed, Counters
from services.replay.selection import Selection, groups_wanted
from services.replay.state import State, Transaction
from shared.advantages import group_advantages
from shared.config import Config
from shared.messages import GroupHeader, Record, Task, Trained
from shared.seeds import derive
from shared.streams import Keys
from shared.versions import Version
from tests.replay.peers import Questions
from tests.replay.recording import Recording

QUESTIONS = 60  # few, so that questions come back


@dataclass
class Step:
    """What one step did."""

    step: int
    asked: list[Task]  # since the step before, in order
    before: list[StoredGroup]
    kept: list[Kept]
    batch: Composed
    scanned: list[str]
    after: list[str]


@dataclass
class Answered:
    """Headers by id, and the steps as they are played."""

    config: Config
    recording: Recording
    seed: int = 0
    measure: Callable[[str, int], Record] | None = None
    reject: Callable[[int, Composed], list[str]] = lambda step, batch: []  # groups that the learner cannot use
    headers: dict[str, GroupHeader] = field(default_factory=dict)
    state: State = field(init=False)

    def play(self, steps: int) -> Iterator[Step]:
        """The first `steps` steps of the run."""
        config, policy, rng = self.config, get_policy(self.config.replay.policy), random.Random(self.seed)
        questions, outcomes = Questions(QUESTIONS), self._outcomes()
        self.state = state = State(Counters(started=0.0, version=Version(0, 0)))
        pipe = redis.Redis().pipeline()  # connects to nothing until it is executed
        tx = Transaction(state, Keys("answered"), pipe)
        running: list[Task] = []
        asked: list[Task] = []
        step = 0
        while step < steps:
            pipe.reset()
            known = set(state.tasks)
            transitions.issue_tasks(config, state, tx, policy, questions)
            for task in [task for id, task in state.tasks.items() if id not in known]:
                self.headers[task.id] = _answer(task, next(outcomes))
                asked.append(task)
                running.append(task)
            fresh = transitions.fresh_for_step(config, state)
            if fresh is None:
                task = running.pop(rng.randrange(len(running)))
                transitions.group_arrived(config, state, tx, policy, self.headers[task.id])
                continue
            moment = Moment(step, derive(config.run.seed, 2, step), again.asked(state))
            before, kept = list(state.buffer), sorted(state.kept.values(), key=lambda k: k.question)
            selection = Selection(policy, state.buffer, groups_wanted(policy, config), config.replay.tau,
                                  config.replay.scan_chunk, moment, config.rollout.group_size)  # fmt: skip
            scanned: list[str] = []
            while ids := selection.next_scan():
                assert self.measure is not None
                scanned += ids
                selection.take([self.measure(id, step) for id in ids], 0.0)
                if selection.done:
                    break
            transitions.batch_composed(config, state, tx, selection, fresh, 0.0)
            batch = state.batches[step]
            rejected = self.reject(step, batch)
            done = Trained(step=step, version=Version(0, step + 1), records=[], rejected=rejected, metrics={})
            transitions.step_trained(config, state, tx, policy, QUESTIONS, done, 1.0)
            tx.drop("batches", str(step))
            groups = [*state.fresh.values(), *state.buffer, *state.retired.values()]
            assert state.payload_bytes == sum(group.bytes for group in groups)
            yield Step(step, asked, before, kept, batch, scanned, [row.id for row in state.buffer])
            asked, step = [], step + 1

    def _outcomes(self) -> Iterator[GroupHeader]:
        step = 0
        while True:
            yield from self.recording.fresh(step)
            step += 1


def _answer(task: Task, outcome: GroupHeader) -> GroupHeader:
    """The recorded group as the answer to this task: its first rollouts, where the task asks for fewer."""
    g, version = task.group_size, Version(0, task.min_version)
    short = {
        name: getattr(outcome, name)[:g]
        for name in ("rewards", "correct", "statuses", "sampled_tokens", "total_tokens", "searches")
    }
    signs = [(a > 0) - (a < 0) for a in group_advantages(short["rewards"]).tolist()]
    return msgspec.structs.replace(
        outcome, id=task.id, kind=task.kind, number=task.number, round=task.round, attempt=task.attempt, signs=signs,
        version_min=version, version_max=version, **short,
    )  # fmt: skip
