"""One task to one result: G rollouts at once under a deadline, scored on what the policy wrote, assembled."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from services.actor import metrics
from services.actor.assemble import Forms, Origin, assemble, failed_group
from services.actor.overlong import penalised, tokens_left
from services.actor.rollout import Player, Rollout
from services.actor.scoring import part_sums, score_rollouts
from services.actor.text import PromptRefused
from services.actor.troubles import TROUBLES
from shared.config import Config
from shared.errors import UserError
from shared.messages import ENV_FAILED, EVAL, KINDS, TIMED_OUT, GroupHeader, Task
from shared.payload import Payload
from shared.rewards.own import Asked
from shared.seeds import derive
from shared.versions import Version

SCORING_S = 20.0  # at least, for a group whose rollouts took all of its time


@dataclass(frozen=True)
class Group:
    """What became of a task."""

    header: GroupHeader
    payload: Payload | None
    rollouts: list[Rollout]
    prompt: list[int]


async def roll_out(
    task: Task,
    player: Player,
    config: Config,
    actor: str,
    version: Callable[[], Version],
    fingerprints: Callable[[], Awaitable[dict[str, str]]],
    ended: Callable[[], None] = lambda: None,
) -> Group:
    """Play, score and assemble. What has ended by itself within rollout.deadline_s is kept; the rest is masked out.
    `ended` is called at the end of each rollout.

    A task whose prompt cannot be used gives a failed group. Raises RetrievalFailed when the environment does not say
    what index it serves.
    """
    started = time.monotonic()
    try:
        prompt = _prompt(task, player, config)
    except PromptRefused as error:
        origin = Origin(
            run=config.run.name, actor=actor, fingerprints={}, version=version(), seconds=time.monotonic() - started
        )
        return Group(failed_group(task, origin, str(error)), None, [], [])
    rollouts = [Rollout() for _ in range(task.group_size)]
    marks = await fingerprints()
    await _play_all(task, player, prompt, rollouts, config.rollout.deadline_s, ended)
    if not marks.get("index"):  # the tool may name it with its documents alone
        named = next((rollout.indexes for rollout in rollouts if rollout.indexes), {""})
        marks = marks | {"index": min(named)}
    for rollout in rollouts:
        if rollout.indexes - {marks["index"]}:  # it changed meanwhile, or replicas serve different ones
            rollout.status, rollout.env_failure = ENV_FAILED, "it answered from another index than before"
    unanswered = [r.env_failure for r in rollouts if r.status == ENV_FAILED]
    metrics.ENV_FAILURES.inc(len(unanswered))
    TROUBLES.note("environment", len(unanswered), f"because {unanswered[-1]}" if unanswered else "")
    cut = sum(r.status == TIMED_OUT for r in rollouts)
    metrics.TIMEOUTS.inc(cut)
    TROUBLES.note("deadline", cut, f"after {config.rollout.deadline_s:g} s")
    scores_by = max(started + config.rollout.deadline_s, time.monotonic() + SCORING_S)
    asked = Asked.of(task.messages, task.ground_truth, task.data_source, task.extra)
    scores = await score_rollouts(rollouts, asked, config, scores_by)
    if task.kind != EVAL:
        left = [tokens_left(r, len(prompt), player.budget) for r in rollouts]
        scores = [penalised(s, n, config.reward) for s, n in zip(scores, left, strict=True)]
    origin = Origin(
        run=config.run.name, actor=actor, fingerprints=marks, version=version(), seconds=time.monotonic() - started
    )
    rewards, correct = [s.reward for s in scores], [s.correct for s in scores]
    forms = Forms(advantage=config.learner.advantage, headroom=config.replay.headroom)
    header, payload = assemble(task, prompt, rollouts, rewards, correct, origin, forms)
    header = msgspec.structs.replace(header, reward_parts=part_sums(scores))
    return Group(header, payload, rollouts, prompt)


def _prompt(task: Task, player: Player, config: Config) -> list[int]:
    prompt, limit = player.codec.prompt(task.messages, config.env.prompt), config.rollout.max_prompt_tokens
    if not 0 < len(prompt) <= limit:
        raise PromptRefused(f"the prompt has {len(prompt)} tokens, rollout.max_prompt_tokens is {limit}")
    return prompt


async def _play_all(
    task: Task,
    player: Player,
    prompt: list[int],
    rollouts: list[Rollout],
    deadline_s: float,
    ended: Callable[[], None],
) -> None:
    def seed(rollout: int) -> Callable[[int], int]:
        return lambda turn: derive(task.seed, rollout, turn)

    plays = [
        asyncio.ensure_future(player.play(rollout, prompt, task.temperature, seed(i)))
        for i, rollout in enumerate(rollouts)
    ]
    for play in plays:
        play.add_done_callback(lambda _: ended())
    try:
        done, _ = await asyncio.wait(plays, timeout=deadline_s, return_when=asyncio.FIRST_EXCEPTION)
        for play in done:
            play.result()  # an engine that failed, or our own mistake: not this group's fault
    finally:
        for play in plays:
            play.cancel()
        await asyncio.gather(*plays, return_exceptions=True)


def is_of_one_learner(task: Task, rollouts: list[Rollout], max_lag: int) -> bool:
    """Whether every token is of weights that the task may be answered with.

    A learner that resumes goes back to its checkpoint, and what is under way goes on under these weights; at lag 0 no
    other swap comes between, so that tokens of two versions there are of two lives of the learner.
    """
    versions = {version for rollout in rollouts for _, version in rollout.version_runs}
    mixes = len(versions) > 1 and max_lag == 0 and task.kind != EVAL
    return not mixes and all(version.number >= task.min_version for version in versions)


def check_task(task: Task) -> None:
    """Raise UserError for a task that cannot be played as it stands."""
    if task.kind not in KINDS:
        raise UserError(f"task {task.id}: unknown kind '{task.kind}'")
    smallest = 1 if task.kind == EVAL else 2
    if task.group_size < smallest:
        raise UserError(f"task {task.id}: group_size {task.group_size}, at least {smallest} is needed")
    if not task.messages or any(set(m) != {"role", "content"} for m in task.messages):
        raise UserError(f"task {task.id}: messages must be a list of role and content")
    if not 0 <= task.temperature < 100 or (task.temperature == 0 and task.kind != EVAL):
        raise UserError(f"task {task.id}: temperature {task.temperature}")
    if task.seed < 0:
        raise UserError(f"task {task.id}: seed {task.seed}")
