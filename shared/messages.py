"""What travels on the streams, as typed msgpack; the schema number comes first and an unknown one is refused.

    stream    entry                                          writer -> reader
    tasks     Task                                           replay -> actors
    groups    GroupHeader                                    actor -> replay
    work      Scan | Batch | Sync | Finish                   replay -> learner
    results   Hello | ScanResult | Trained | Checkpointed    learner -> replay
    weights   WeightsNotice                                  learner -> all
    events    a small JSON-like mapping (shared.events)      all -> people

`msgspec` checks every field's type on decoding; `decode` adds what types cannot say (finite numbers, matching lengths).
"""

import math
import re
from typing import Any

import msgspec

from shared.versions import Version

SCHEMA = 1

LARGEST = 1e6  # of a reward, an advantage, a log-probability: what is beyond was not computed from a rollout
MOST_OPEN = 2**20  # training tasks from the first that is open to the last that was issued
PAYLOAD_BYTES = 2**29  # the most that Redis holds under one key

TRAIN, EVAL = "train", "eval"
AGAIN = "again"  # a training task whose prompt was asked before, at the wish of a policy
KINDS = (TRAIN, EVAL, AGAIN)

# how a rollout ended
FINISHED = "finished"  # an answer, or an end-of-sequence token in a single-turn task
TRUNCATED = "truncated"  # out of tokens or turns: scored as it stands
ENV_FAILED = "env_failed"  # the environment did not answer in time: masked, never scored
TIMED_OUT = "timed_out"  # the group's deadline came first: masked, never scored
ROLLOUT_STATUSES = (FINISHED, TRUNCATED, ENV_FAILED, TIMED_OUT)


# What msgspec raises of bytes that are not what they should be: those nested without end, too.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Malformed(ValueError):
    """Bytes that are not a valid message; the text says why and is kept with the dead letter."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """A message with its schema number."""

    schema: int = SCHEMA


class Task(Message, frozen=True, tag="task"):
    """One prompt to roll out G times. `number` is its place in the endless shuffled data set (per kind)."""

    id: str
    kind: str  # of KINDS
    number: int
    attempt: int
    seed: int
    group_size: int
    temperature: float
    min_version: int  # the lowest weights number the first token may be sampled under
    data_source: str
    messages: list[dict[str, str]]  # chat messages; the actor applies the template and tokenises
    ground_truth: list[str]
    extra: str = ""  # the row's other columns as JSON, where reward.function may want them
    round: int = -1  # EVAL: the weights number this evaluation is of; AGAIN: the step that asked


class GroupHeader(Message, frozen=True, tag="group"):
    """All that replay reads of a group; the payload stays in Redis. Lists have one item per rollout."""

    id: str
    kind: str
    number: int
    attempt: int
    round: int
    actor: str
    data_source: str
    rewards: list[float | None]  # None: unscored
    correct: list[bool]
    signs: list[int]  # of the advantages
    statuses: list[str]
    prompt_tokens: int
    sampled_tokens: list[int]  # policy-sampled, i.e. |T| of the rollout
    total_tokens: list[int]  # sampled and retrieved
    searches: list[int]
    version_min: Version  # of the sampled tokens, by number: lag is counted in steps of training
    version_max: Version
    headroom: float  # under l_gen
    payload_bytes: int
    seconds: float  # of generation, environment included
    env_seconds: float  # of it spent waiting for the environment, mean per rollout
    fingerprints: dict[str, str]  # tokenizer, template, reward, index
    reward_parts: dict[str, tuple[float, int]] = {}  # of each: its sum, over how many scored rollouts
    failure: str = ""  # not empty: nothing usable came out, there is no payload, and this says why

    @property
    def usable(self) -> bool:
        """Whether there is a payload."""
        return not self.failure

    @property
    def refused(self) -> bool:
        """Whether the prompt itself cannot be used, so that nothing was rolled out and no attempt will do better."""
        return bool(self.failure) and not self.rewards

    @property
    def scored(self) -> list[float]:
        """The rewards that exist."""
        return [r for r in self.rewards if r is not None]

    @property
    def right(self) -> int:
        """How many of the scored rollouts are right."""
        return sum(c for c, r in zip(self.correct, self.rewards, strict=True) if r is not None)

    @property
    def mixed(self) -> bool:
        """Whether some, but not all, of the scored rollouts are right (docs/method.md, section 3)."""
        return 0 < self.right < len(self.scored)


class Scan(Message, frozen=True, tag="scan"):
    """Score these stored groups under the current weights."""

    scan: str  # echoed in the result; unique over restarts of replay
    step: int
    ids: list[str]
    per_rollout: bool = False  # the records bring `entropies`


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the data set is used once a batch is trained. It lies in checkpoints, for a server that lost its data."""

    issued: int  # training tasks, by number from 0 on
    lost: int  # of them, given up
    refilled: int  # of them, dropped by the policy and replaced
    untrained: list[int]  # numbers of tasks that still run, or have come back and are in no batch yet


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a batch uses a group that it does not use as it is stored."""

    rollouts: list[int]  # which, by their place in the group; the other ones are left out
    advantages: list[float] | None = None  # of these; None: the frozen ones
    joins: str = ""  # the group of the batch these are averaged with, as if they were its own


class Batch(Message, frozen=True, tag="batch"):
    """One training step: [replay in order ; fresh in order]."""

    step: int
    replay: list[str]
    fresh: list[str]
    parts: dict[str, Part] = {}  # by group; empty for policies that use whole groups
    cursor: Cursor | None = None


class Sync(Message, frozen=True, tag="sync"):
    """Replay has loaded its state. The learner answers with what it has trained of `batches`, and with Hello."""

    step: int  # the next one that replay has not heard of as trained
    batches: list[int]  # steps whose batches replay holds, ascending


class Finish(Message, frozen=True, tag="finish"):
    """No more batches: the run has trained its last step and the evaluation is in."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a group under one version of the weights (docs/method.md, section 5), d = log p - l_ref a token."""

    id: str
    tokens: int  # |T|
    tokens_positive: int  # tokens of responses with A > 0, and with A < 0
    tokens_negative: int
    mean_p_positive: float
    mean_p_negative: float
    headroom: float
    sum_d: float
    sum_d2: float
    max_abs_d: float
    k3: float  # mean(e^d - 1 - d)
    dead_share: float  # tokens whose gradient the clip makes zero
    entropy: float = 0.0  # mean -log p of the stored tokens
    entropies: dict[int, float] | None = None  # the same of each rollout, by its place in the group, where asked for
    headroom_ref: float | None = None  # Headroom under l_ref; sent when the group is fresh
    engine_gap: float | None = None  # mean (l_ref - l_gen)^2; sent when the group is fresh
    noise: float | None = None  # mean d^2 of scoring it twice, cut otherwise; of the first of a scan, now and then
    sum_abs_d: float = 0.0
    measure: str = "l2"  # replay.drift of the learner that made it

    @property
    def measured(self) -> bool:
        """Whether there is anything to go by."""
        return self.tokens > 0 and abs(self.headroom) <= LARGEST and 0 <= self.drift <= LARGEST**2

    @property
    def drift(self) -> float:
        """mean d^2 over T(g), or mean |d| where `measure` is "l1"."""
        return (self.sum_abs_d if self.measure == "l1" else self.sum_d2) / self.tokens


class Hello(Message, frozen=True, tag="hello"):
    """The learner is at `version`; what was trained after that in an earlier lineage is void."""

    version: Version
    cursor: Cursor | None = None  # as of this version; None where no step was trained or it is not known
    again: bool = False  # batches from this version on did not reach the learner: send them again


class ScanResult(Message, frozen=True, tag="scanned"):
    """The records of one Scan, in its order. A group that could not be read is missing."""

    scan: str
    step: int
    version: Version
    records: list[Record]
    seconds: float


class Trained(Message, frozen=True, tag="trained"):
    """Step `step` is done: `version` is (lineage, step + 1) and is published."""

    step: int
    version: Version
    records: list[Record]
    rejected: list[str]  # groups of the batch that were refused, with a dead letter each
    metrics: dict[str, float]


class Checkpointed(Message, frozen=True, tag="checkpointed"):
    """Steps below `step` are durable."""

    version: Version
    step: int


class WeightsNotice(Message, frozen=True, tag="weights"):
    """A published version. `location` is relative to the weights folder."""

    version: Version
    location: str
    digest: str
    size: int
    published: float  # unix seconds
    canary: list["CanarySequence"]


class CanarySequence(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids and the log-probability of each but the first `start`, under the published weights at temperature 1."""

    tokens: list[int]
    start: int
    logprobs: list[float]  # of tokens[start:]
    dtype: str = "float32"  # that they were computed in


Work = Scan | Batch | Sync | Finish
Result = Hello | ScanResult | Trained | Checkpointed

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder] = {}


def encode(message: Message) -> bytes:
    """msgpack bytes."""
    return _encoder.encode(message)


def decode(data: bytes, kind: Any) -> Any:
    """A checked message. `kind` is a Message class or one of the unions. Raises Malformed with the reason."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        message = decoder.decode(data)
    except UNREADABLE as error:
        raise Malformed(f"not a valid message: {error}") from None
    if message.schema != SCHEMA:
        raise Malformed(f"schema {message.schema}, and this version reads schema {SCHEMA}")
    check(message)
    return message


def check(message: Message) -> None:
    """Raise Malformed for what no type can say."""
    match message:
        case GroupHeader():
            _check_header(message)
        case Task():
            _check_task(message)
        case Scan() | Batch() | Sync() | Hello() | ScanResult() | Trained() | Checkpointed():
            _check_steps(message)
        case WeightsNotice() if not _NAME.fullmatch(message.location):
            raise Malformed(f"weights {message.version} at '{message.location}', which is no name inside weights.dir")
        case _:
            return


def _check_task(task: Task) -> None:
    counts = [task.number, task.attempt, task.min_version, task.group_size - 1, task.round + 1]
    if task.kind not in KINDS or min(counts) < 0 or max(counts) >= 2**31 or not math.isfinite(task.temperature):
        raise Malformed(f"task {task.id}: of no kind, or with a number that no task has")


def _check_steps(said: "Work | Result") -> None:
    """Steps and versions that a run can come to, and fit each other; numbers that can be counted with."""
    step, version = getattr(said, "step", 0), getattr(said, "version", Version(0, 0))
    others = said.batches if isinstance(said, Sync) else []
    if not all(0 <= number < 2**31 for number in (step, *version, *others)):
        raise Malformed("a step or a version that no run comes to")
    match said:
        case Trained() if version.number != step + 1:
            raise Malformed(f"step {step} was trained, and its version is {version}")
        case Checkpointed() if version.number < step:
            raise Malformed(f"steps below {step} are saved, and the learner is at version {version}")
        case ScanResult() if not 0 <= said.seconds <= LARGEST:
            raise Malformed(f"a scan that took {said.seconds} s")
        case Batch(replay=stored, fresh=fresh) if both := {*stored}.intersection(fresh):
            raise Malformed(f"group {min(both):.50} is replayed in the step that it is fresh in")
        case Batch(parts=parts) if not all(abs(a) <= LARGEST for p in parts.values() for a in p.advantages or ()):
            raise Malformed("an advantage that no rollout has")
        case _:
            pass
    if isinstance(said, Batch | Hello) and said.cursor is not None:
        _check_cursor(said.cursor)


def _check_cursor(cursor: Cursor) -> None:
    first, last = min(cursor.untrained, default=cursor.issued), max(cursor.untrained, default=-1)
    if min(first, cursor.lost, cursor.refilled) < 0 or last >= cursor.issued or cursor.issued >= 2**31:
        raise Malformed("a cursor with a number that no run comes to")
    if cursor.issued - first > MOST_OPEN:
        raise Malformed(f"a cursor with {cursor.issued - first} tasks behind the first that is open")


def _check_header(h: GroupHeader) -> None:
    per_rollout = {
        "correct": h.correct,
        "signs": h.signs,
        "statuses": h.statuses,
        "sampled_tokens": h.sampled_tokens,
    }
    per_rollout |= {"total_tokens": h.total_tokens, "searches": h.searches}
    for name, values in per_rollout.items():
        if len(values) != len(h.rewards):
            raise Malformed(f"group {h.id}: {len(values)} {name} for {len(h.rewards)} rewards")
    if h.kind not in KINDS:
        raise Malformed(f"group {h.id}: unknown kind '{h.kind}'")
    if any(s not in ROLLOUT_STATUSES for s in h.statuses):
        raise Malformed(f"group {h.id}: unknown rollout status")
    parts = [total for total, _ in h.reward_parts.values()]
    numbers = [h.headroom, h.seconds, h.env_seconds, *h.scored, *parts]
    if not all(math.isfinite(x) for x in numbers):
        raise Malformed(f"group {h.id}: a number that is not finite")
    if any(abs(x) > LARGEST for x in [h.headroom, *h.scored]) or any(abs(sign) > 1 for sign in h.signs):
        raise Malformed(f"group {h.id}: a reward, Headroom or sign that no rollout gives")
    counts = [h.number, h.attempt, h.prompt_tokens, *h.sampled_tokens, *h.total_tokens, *h.searches, *h.version_min]
    if any(not 0 < n <= len(h.rewards) or abs(total) > n * LARGEST for total, n in h.reward_parts.values()):
        raise Malformed(f"group {h.id}: a part of a reward that no rollouts give")
    if min(counts) < 0 or h.payload_bytes < 0:
        raise Malformed(f"group {h.id}: a negative count")
    tokens = h.prompt_tokens + sum(h.total_tokens)
    if max([*counts, *h.version_max]) >= 2**31 or max(4 * tokens, h.payload_bytes) > PAYLOAD_BYTES:
        raise Malformed(f"group {h.id}: a count larger than any group has")
    if any(sampled > total for sampled, total in zip(h.sampled_tokens, h.total_tokens, strict=True)):
        raise Malformed(f"group {h.id}: more sampled tokens than tokens")
    if h.version_min.number > h.version_max.number:
        raise Malformed(f"group {h.id}: version_min {h.version_min} above version_max {h.version_max}")
