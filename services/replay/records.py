"""What replay's state is made of besides tasks and rows, in the form in which it lies in Redis."""

from typing import Annotated, Any

import msgspec

from services.replay.adaptive import Gate
from services.replay.numbers import Settled
from shared.messages import Batch, Cursor, GroupHeader, Part
from shared.versions import Version


class Counters(msgspec.Struct, kw_only=True):
    """Numbers of the run so far."""

    started: float  # unix seconds
    step: int = 0  # the next step to be trained
    version: Version | None = None  # the learner's, None until it says hello
    issued: int = 0  # training tasks
    lost: int = 0  # training tasks given up after max_attempts
    filtered: int = 0  # usable training groups that the policy left untrained
    refilled: int = 0  # of them, dropped on arrival and replaced by other tasks
    refilled_in_step: int = 0  # since the last trained step
    regenerated: int = 0  # usable groups of prompts that were asked again
    asked_again: int = -1  # the last step that began a round of them
    success: float = 0.0  # the highest share of right answers in a step's fresh groups
    failed: int = 0  # attempts that brought nothing usable
    duplicates: int = 0  # groups that were there already
    generated: int = 0  # usable training groups
    generated_rollouts: int = 0  # of these, scored or not
    trained: int = 0  # as fresh groups
    trained_twice: int = 0
    settled: Settled = msgspec.field(default_factory=Settled)  # training tasks trained as fresh, or gone
    replayed: int = 0  # uses of stored groups
    mixed: int = 0  # of the generated
    evicted: int = 0
    rejected: int = 0  # refused by the learner, or with other fingerprints
    inserted: int = 0  # next StoredGroup.sequence
    same_prompt: int = 0  # prompts that were fresh and replayed in one step
    sampled_tokens: int = 0
    offered_rollouts: int = 0  # and their tokens: services/replay/lengths.py
    offered_tokens: int = 0
    timed_out_rollouts: int = 0
    trained_rollouts: int = 0
    trained_tokens: int = 0
    payload_bytes: int = 0  # written by actors, in all
    evals: list[int] = []  # rounds begun
    evals_next: dict[int, int] = {}  # of those that are not all asked: the first question that is not
    evals_done: list[int] = []
    gate: Gate | None = None  # where replay.adaptive_tau has got to; None: replay.tau
    finished: bool = False
    memory_full: bool = False
    fingerprints: dict[str, str] = {}
    replaced: list[dict[str, str]] = []  # the ones before: services/replay/origins.py
    replaced_in_row: int = 0
    told_of_two_kinds: bool = False

    @property
    def gone(self) -> int:
        """Tasks that were issued and that no step will train."""
        return self.lost + self.refilled


class FreshGroup(msgspec.Struct, frozen=True):
    """A group that has arrived, with the last step it may be trained at."""

    header: GroupHeader
    due: Annotated[int, msgspec.Meta(ge=0, lt=2**40)]

    @property
    def bytes(self) -> int:
        """What its payload takes."""
        return self.header.payload_bytes


class Composed(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was sent, and how it came about; kept until the checkpoint that contains it."""

    step: int
    replay: list[str]
    fresh: list[str]
    stats: dict[str, Any]
    left_out: list[str] = []  # fresh groups that the step took and the batch does not hold
    cursor: Cursor | None = None
    parts: dict[str, Part] = {}  # of groups that the batch does not use as they are

    @property
    def message(self) -> Batch:
        """As it is sent to the learner."""
        return Batch(step=self.step, replay=self.replay, fresh=self.fresh, parts=self.parts, cursor=self.cursor)


class Retired(msgspec.Struct, frozen=True):
    """A group nobody will use again but a learner that resumes before `step` + 1; then its payload is deleted."""

    step: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**40)]


class Outcome(msgspec.Struct, frozen=True):
    """One evaluated question."""

    data_source: str
    reward: float | None
    correct: float
    version_min: Version
    version_max: Version
