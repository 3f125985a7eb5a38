"""From the rollouts of a task to what travels: a header for replay and, for training, a payload. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.actor.rollout import Rollout
from shared.advantages import group_advantages
from shared.headroom import headroom
from shared.messages import EVAL, GroupHeader, Task
from shared.payload import Payload
from shared.versions import Version


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where and under what a group was made."""

    run: str
    actor: str
    fingerprints: dict[str, str]
    version: Version  # in force at the end; stands in where no token was sampled
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Forms:
    """Which advantage and which Headroom a group is given: learner.advantage, replay.headroom."""

    advantage: str = "std"
    headroom: str = "sign"


def failed_group(task: Task, origin: Origin, failure: str) -> GroupHeader:
    """The header of a task that gave nothing to score at all."""
    return _header(task, origin, [], [], [], [], prompt_tokens=0, failure=failure)


def assemble(
    task: Task,
    prompt: Sequence[int],
    rollouts: Sequence[Rollout],
    rewards: Sequence[float | None],
    correct: Sequence[bool],
    origin: Origin,
    forms: Forms = Forms(),
) -> tuple[GroupHeader, Payload | None]:
    """One header, and the payload where the group can be trained on.

    A rollout without a reward is masked out whole. No payload: an evaluation, fewer than two scored rollouts (one is
    enough for an evaluation), or a log-probability that is not finite; the last two set `failure`.
    """
    masks = [
        r.mask if reward is not None else [False] * len(r.mask) for r, reward in zip(rollouts, rewards, strict=True)
    ]
    n_scored = sum(reward is not None for reward in rewards)
    evaluation = task.kind == EVAL
    scored = [r for r, reward in zip(rollouts, rewards, strict=True) if reward is not None]
    failure = ""
    if n_scored < (1 if evaluation else 2):
        statuses = ", ".join(
            f"{sum(r.status == s for r in rollouts)} {s}" for s in sorted({r.status for r in rollouts})
        )
        failure = f"{n_scored} of {len(rollouts)} rollouts could be scored ({statuses})"
    elif not all(math.isfinite(x) for r in scored for x in r.logprobs):
        failure = "the engine gave a log-probability that is not finite"
    elif not any(any(mask) for mask in masks):
        failure = "no token was sampled"
    if failure or evaluation:
        signs = [0] * len(rollouts)
        header = _header(task, origin, rollouts, rewards, correct, signs, prompt_tokens=len(prompt), failure=failure)
        return header, None
    advantages = group_advantages(rewards, forms.advantage)
    signs = np.sign(advantages).astype(int)
    runs = [run for r in scored for run in r.version_runs]
    l_gen = np.array([x for r in scored for x in r.logprobs], np.float32)
    per_token = np.repeat(advantages, [sum(mask) for mask in masks])
    payload = Payload(
        id=task.id,
        run=origin.run,
        prompt=np.array(prompt, np.int32),
        lengths=np.array([len(r.ids) for r in rollouts], np.int32),
        tokens=np.array([i for r in rollouts for i in r.ids], np.int32),
        mask=np.array([m for mask in masks for m in mask], bool),
        l_gen=l_gen,
        advantages=advantages,
        version_runs=np.array([(n, *v) for n, v in runs], np.int32).reshape(-1, 3),
        turns=np.array([(i, a, b) for i, r in enumerate(rollouts) for a, b in r.turns], np.int32).reshape(-1, 3),
        documents=[r.documents for r in rollouts],
    )
    header = _header(
        task,
        origin,
        rollouts,
        rewards,
        correct,
        signs.tolist(),
        prompt_tokens=len(prompt),
        headroom=headroom(l_gen, per_token, forms.headroom),
    )
    return header, payload


def _header(
    task: Task,
    origin: Origin,
    rollouts: Sequence[Rollout],
    rewards: Sequence[float | None],
    correct: Sequence[bool],
    signs: Sequence[int],
    *,
    prompt_tokens: int,
    headroom: float = 0.0,
    failure: str = "",
) -> GroupHeader:
    versions = [v for r, reward in zip(rollouts, rewards, strict=True) if reward is not None for _, v in r.version_runs]
    return GroupHeader(
        id=task.id,
        kind=task.kind,
        number=task.number,
        attempt=task.attempt,
        round=task.round,
        actor=origin.actor,
        data_source=task.data_source,
        rewards=list(rewards),
        correct=list(correct),
        signs=list(signs),
        statuses=[r.status for r in rollouts],
        prompt_tokens=prompt_tokens,
        sampled_tokens=[sum(r.mask) if reward is not None else 0 for r, reward in zip(rollouts, rewards, strict=True)],
        total_tokens=[len(r.ids) for r in rollouts],
        searches=[r.searches for r in rollouts],
        version_min=min(versions, key=_number, default=origin.version),
        version_max=max(versions, key=_number, default=origin.version),
        headroom=headroom,
        payload_bytes=0,
        seconds=origin.seconds,
        env_seconds=sum(r.env_seconds for r in rollouts) / max(len(rollouts), 1),
        fingerprints=origin.fingerprints,
        failure=failure,
    )


def _number(version: Version) -> int:
    """Lag is counted in steps of training, whatever lineage they were taken in."""
    return version.number
