"""Prompts that a policy asks again, through the tasks stream, beside the fresh ones of each step.

    a training group --> kept, or let go --every replay.ask_again_every steps--> AGAIN tasks --> the next batches

They are no part of admission's count: what they cost comes on top, and is counted in groups_regenerated. The lag bound
holds for them too: task w + L is the last step that may train a group asked for at version w, and that step waits for
it. It waits for running tasks only, which end in a group, a failure or a reclaim; a failed one is asked anew, under a
later version. None is asked for so late that no step would come.
"""

import msgspec

from services.replay.kept import Kept
from services.replay.policies import Moment, Policy
from services.replay.state import State, Transaction
from services.replay.tasks import again_task
from shared.config import Config
from shared.messages import AGAIN, GroupHeader, Task
from shared.prompts import PromptSource
from shared.seeds import derive


def start_round(config: Config, state: State, tx: Transaction, policy: Policy, train: PromptSource) -> list[Task]:
    """The tasks of the round that this step begins, once. None while memory is full: the round is left out."""
    c, again = state.counters, policy.again
    if again is None or c.asked_again >= c.step or c.step % config.replay.ask_again_every:
        return []
    c.asked_again = c.step
    last = c.step + config.replay.max_lag >= config.run.steps
    if c.step == 0 or last or state.payload_bytes > config.replay.max_bytes:
        return []
    moment = Moment(c.step, derive(config.run.seed, 4, c.step))
    kept = sorted(state.kept.values(), key=lambda k: k.question)
    picked = again.picks(kept, config.replay_groups, moment)
    for prompt in picked:
        tx.put("kept", str(prompt.question), msgspec.structs.replace(prompt, asked=c.step))
    return [again_task(config, train, prompt.question, c.step) for prompt in picked]


def heard(config: Config, state: State, tx: Transaction, policy: Policy, question: int, header: GroupHeader) -> None:
    """A training group of the question is in: keep the question or let it go; over replay.capacity the stalest goes."""
    if policy.again is None:
        return
    field = str(question)
    before = state.kept.get(field)
    if not policy.again.keeps(header):
        if before is not None:
            tx.drop("kept", field)
        return
    right, scored, asked = header.right, len(header.scored), before.asked if before else -1
    step = state.counters.step
    tx.put("kept", field, Kept(question=question, step=step, right=right, scored=scored, asked=asked))
    if len(state.kept) > config.replay.capacity:
        stalest = min(state.kept.values(), key=lambda k: (k.step, k.question))
        tx.drop("kept", str(stalest.question))


def for_step(config: Config, state: State) -> list[str] | None:
    """The groups of asked-again prompts that the next step takes: all that are here. None: one must be waited for."""
    step, max_lag = state.counters.step, config.replay.max_lag
    if any(t.kind == AGAIN and t.min_version + max_lag <= step for t in state.tasks.values()):
        return None
    return sorted(id for id, group in state.fresh.items() if group.header.kind == AGAIN)
