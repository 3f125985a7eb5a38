"""Prompts that a policy asks again, through the tasks stream, beside the fresh ones of each step.

    a training group --> kept, let go or retired --a round every few steps--> AGAIN tasks --> the next batches

They are no part of admission's count: what they cost comes on top, and is counted in groups_regenerated. The lag bound
holds for them too: step w + L is the last one that may train a group asked for at version w, and that step waits for
it. It waits for running tasks only, which end in a group, a failure or a reclaim; a failed one is asked anew, under a
later version. None is asked for so late that no step would come.
"""

import msgspec

from services.replay.kept import Kept
from services.replay.policies import Moment, Policy
from services.replay.state import State, Transaction
from services.replay.tasks import again_task
from shared.config import Config
from shared.errors import UserError
from shared.messages import AGAIN, GroupHeader, Task
from shared.prompts import PromptSource
from shared.seeds import derive


def check(config: Config, policy: Policy) -> None:
    """Raise UserError for settings that the policy cannot work with."""
    if policy.again is not None and policy.again.joined and config.rollout.group_size < 3:
        raise UserError(
            f"replay.policy = '{policy.name}' asks for one response less than rollout.group_size = "
            f"{config.rollout.group_size}, and a group needs two: set it to 3 or more."
        )


def start_round(config: Config, state: State, tx: Transaction, policy: Policy, train: PromptSource) -> list[Task]:
    """The tasks of the round that this step begins, once. While memory is full the round is left out."""
    c, again = state.counters, policy.again
    if again is None or c.asked_again >= c.step or c.step % (again.every or config.replay.ask_again_every):
        return []
    c.asked_again = c.step
    late = c.step + config.replay.max_lag >= config.run.steps
    full = state.payload_bytes > config.replay.max_bytes
    if c.step == 0 or late or full or c.success < again.starts_at:
        return []
    moment = Moment(c.step, derive(config.run.seed, 4, c.step))
    out = asked(state)
    there = range(len(train))  # a run may be resumed with fewer questions
    kept = [k for k in state.kept.values() if not k.retired and k.question not in out and k.question in there]
    kept.sort(key=lambda k: k.question)
    n = config.replay.select or (config.learner.batch if again.joined else config.replay_groups)
    picked = again.picks(kept, n, config.rollout.group_size, moment)
    for prompt in picked:
        tx.put("kept", str(prompt.question), msgspec.structs.replace(prompt, asked=c.step))
    size = config.rollout.group_size - again.joined
    return [again_task(config, train, prompt.question, c.step, size) for prompt in picked]


def asked(state: State) -> frozenset[int]:
    """The questions asked again whose groups are running, or here and not trained."""
    here = [group.header for group in state.fresh.values()]
    return frozenset(one.number for one in [*state.tasks.values(), *here] if one.kind == AGAIN)


def heard(config: Config, state: State, tx: Transaction, policy: Policy, question: int, header: GroupHeader) -> None:
    """A training group of the question is in: keep the question, retire it, or let it go.

    Over replay.capacity the one that was heard of longest ago is let go.
    """
    again = policy.again
    if again is None:
        return
    field = str(question)
    before = state.kept.get(field)
    retired = (before is not None and before.retired) or again.retires(header)
    if not retired and not again.keeps(header):
        if before is not None:
            tx.drop("kept", field)
        return
    latest = Kept(
        question=question,
        step=state.counters.step,
        right=header.right,
        scored=len(header.scored),
        asked=before.asked if before else -1,
        retired=retired,
    )
    tx.put("kept", field, latest)
    if len(state.kept) <= config.replay.capacity:
        return
    open = [k for k in state.kept.values() if not k.retired]
    if len(open) > config.replay.capacity:
        tx.drop("kept", str(min(open, key=lambda k: (k.step, k.question)).question))


def is_retired(state: State, question: int) -> bool:
    """Whether nothing of this question is stored any more."""
    prompt = state.kept.get(str(question))
    return prompt is not None and prompt.retired


def clear_retired(state: State, tx: Transaction) -> None:
    """Let what is stored of retired questions leave."""
    retired = [prompt.question for prompt in state.kept.values() if prompt.retired]
    gone = state.buffer.ids(state.buffer.of_prompts(retired)) if retired else []
    for id in gone:
        tx.retire(id, tx.discard(id).bytes)
    state.counters.evicted += len(gone)


def for_step(config: Config, state: State) -> list[str] | None:
    """The groups of asked-again prompts that the next step takes: all that are here. None: one must be waited for."""
    step, max_lag = state.counters.step, config.replay.max_lag
    if any(t.kind == AGAIN and t.min_version + max_lag <= step for t in state.tasks.values()):
        return None
    return sorted(id for id, group in state.fresh.items() if group.header.kind == AGAIN)
