"""What each event does to the state: one function per event, each part of one transaction.

Read `batch_composed` and `step_trained` with docs/method.md section 3 beside them: batch, update, append, evict, in
this order.
"""

import logging
import time
from collections.abc import Iterable

import msgspec

from services.replay import adaptive, again, evaluation, lengths, origins, refills, refused
from services.replay.adaptive import Gate
from services.replay.admission import Fresh, choose_fresh, tasks_to_issue
from services.replay.joins import join
from services.replay.policies import Policy
from services.replay.records import Composed, FreshGroup
from services.replay.resync import cursor_after
from services.replay.rows import bytes_of, new_row
from services.replay.selection import Selection, whole_units
from services.replay.state import State, Transaction
from services.replay.stats import batch_stats, step_event, trained_rollouts
from services.replay.tasks import attempt_seed, question_of, train_task
from shared.advantages import group_advantages
from shared.config import Config
from shared.messages import (
    AGAIN,
    EVAL,
    LARGEST,
    TRAIN,
    Checkpointed,
    Finish,
    GroupHeader,
    Malformed,
    Task,
    Trained,
)
from shared.prompts import PromptSource

log = logging.getLogger("headrace.replay")


def issue_tasks(config: Config, state: State, tx: Transaction, policy: Policy, train: PromptSource) -> None:
    """Start the training tasks that are due: prompts that are asked again, then what admission allows."""
    c = state.counters
    for task in again.start_round(config, state, tx, policy, train):
        _send(tx, task)
    untrained = [task.kind for task in state.tasks.values()].count(TRAIN)
    untrained += [group.header.kind for group in state.fresh.values()].count(TRAIN)
    full = state.payload_bytes > config.replay.max_bytes
    if full and not c.memory_full:
        tx.event("warning", service="replay", text=_memory_full(config, state))
    c.memory_full = full
    max_lag = 0 if full else config.replay.max_lag  # only what the next step needs, which frees memory in the end
    room = tasks_to_issue(untrained, c.step, config.learner.batch, max_lag, config.run.steps)
    for _ in range(room):
        _send(tx, train_task(config, train, c.issued, attempt=0, min_version=c.step))
        c.issued += 1


def issue_questions(config: Config, state: State, tx: Transaction, held_out: PromptSource | None, actors: int) -> None:
    """Start what is due of evaluations, behind the training tasks that are due: a step waits for those alone."""
    for task in evaluation.tasks_due(config, state, tx, held_out, actors):
        _send(tx, task)


def group_arrived(config: Config, state: State, tx: Transaction, policy: Policy, header: GroupHeader) -> None:
    """File a group under fresh, an evaluation's answer with its round, a failure as another attempt or a loss.

    A group that will not be trained is dropped here, where no step counts on it.
    """
    c = state.counters
    task = state.tasks.get(header.id)
    if task is not None and not _answers(task, header):
        raise Malformed(f"group {header.id} is of another task than the one of this name")
    if task is not None and header.kind != EVAL:
        lengths.offered(c, header)
        refused.count(state, header)
    if task is None:  # answered before
        c.duplicates += 1
        if header.id not in state.fresh and header.id not in state.buffer and header.id not in state.retired:
            tx.delete_payloads([header.id])
    elif not header.usable and header.attempt == task.attempt:
        _attempt_failed(config, state, tx, task, header.failure, last=header.refused)
    elif not header.usable:
        pass  # an attempt that has been replaced already
    elif header.kind == EVAL:
        tx.drop("tasks", header.id)
        evaluation.answered(state, tx, header)
    elif header.version_min.number < task.min_version:
        tx.delete_payloads([header.id])  # of an attempt that was replaced, and older than what a later step counts on
    else:
        tx.drop("tasks", header.id)
        origins.seen(config, state, tx, header)
        c.generated += 1
        c.generated_rollouts += len(header.rewards)
        c.mixed += header.mixed
        c.sampled_tokens += sum(header.sampled_tokens)
        c.payload_bytes += header.payload_bytes
        if header.kind == AGAIN:
            c.regenerated += 1
            again.heard(config, state, tx, policy, header.number, header)
        if (policy.refills or header.kind == AGAIN) and not policy.trains(header):
            refills.dropped(state, tx, header)
            return
        tx.keep_header(header)
        tx.put("fresh", header.id, FreshGroup(header, due=task.min_version + config.replay.max_lag))


def _answers(task: Task, header: GroupHeader) -> bool:
    """Whether the group is of this task, of whichever attempt; one that failed may have no rollouts."""
    same = (header.kind, header.number, header.round) == (task.kind, task.number, task.round)
    sizes = (0, task.group_size) if header.failure else (task.group_size,)
    return same and header.attempt <= task.attempt and len(header.rewards) in sizes


def task_vanished(config: Config, state: State, tx: Transaction, task: Task) -> None:
    """A task that is neither answered nor in the stream counts as a failed attempt.

    Its answer may have been one that could not be read: what is left of it must not stand in the next one's way.
    """
    tx.delete_payloads([task.id])
    _attempt_failed(config, state, tx, task, "its entry has gone from the stream without a group")


def gate_of(config: Config, state: State) -> Gate:
    """The gate of the next step: replay.tau, unless it adapts."""
    gate = state.counters.gate
    if config.replay.adaptive_tau == 0 or gate is None:
        return Gate(config.replay.tau)
    return adaptive.clamped(gate, config.replay.tau, config.replay.adaptive_tau)


def fresh_for_step(config: Config, state: State) -> list[str] | None:
    """The fresh groups the next step takes, or None while it must wait."""
    if len(state.fresh) < config.learner.batch:
        return None  # the usual case, asked with every group
    arrived = [Fresh(g.due, g.header.number, id) for id, g in state.fresh.items() if g.header.kind == TRAIN]
    running = [t.min_version + config.replay.max_lag for t in state.tasks.values() if t.kind == TRAIN]
    chosen = choose_fresh(arrived, running, state.counters.step, config.learner.batch)
    on_top = again.for_step(config, state)
    return None if chosen is None or on_top is None else [fresh.id for fresh in chosen] + on_top


def batch_composed(
    config: Config, state: State, tx: Transaction, selection: Selection, fresh: list[str], waited_s: float
) -> None:
    """Send [replay ; fresh], and cache the Headroom and Drift that the scan measured."""
    step, policy = state.counters.step, selection.policy
    accepted, replaceable = selection.accepted, []
    if policy.replaces is not None:
        replaceable = [id for id in fresh if policy.replaces(state.fresh[id].header)]
        accepted = accepted[: len(replaceable)]
    replay, parts = whole_units(accepted, config.replay.unit), selection.parts
    if policy.again is not None and policy.again.joined:
        replay, parts = join(config, state, selection, fresh)
    left_out = replaceable[: len(replay)] + [id for id in fresh if not policy.trains(state.fresh[id].header)]
    rows = [state.buffer.row(id) for id in replay]
    headers = [state.fresh[id].header for id in fresh]
    fresh = [id for id in fresh if id not in left_out]
    stats = batch_stats(step, selection, rows, headers, waited_s)
    stats |= {"fresh_groups": len(fresh), "left_out_groups": len(left_out)}
    stats |= trained_rollouts(rows, [state.fresh[id].header for id in fresh], parts)
    for id, record in selection.refreshed.items():
        state.buffer.refresh(id, record.headroom, record.drift)
    for id in replay:
        state.buffer.count_use(id)
    for id in {*selection.refreshed, *replay}:
        tx.save_row(id)
    for id in selection.unusable:
        tx.retire(id, tx.discard(id).bytes)
        state.counters.rejected += 1
    cursor = cursor_after(state, [*fresh, *left_out])
    parts = {id: part for id, part in parts.items() if id in replay or id in fresh}
    batch = Composed(step=step, replay=replay, fresh=fresh, stats=stats, left_out=left_out, cursor=cursor, parts=parts)
    tx.put("batches", str(step), batch)
    tx.send(tx.keys.work, batch.message)


def step_trained(
    config: Config, state: State, tx: Transaction, policy: Policy, questions: int, done: Trained, seconds: float
) -> None:
    """Update the scores, append what the policy keeps of the step's groups, evict what it lets go.

    questions: how many the training set has; seconds: since the step before was trained.
    """
    c = state.counters
    if c.version is None or done.version.lineage < c.version.lineage:
        return  # said by a learner that has been replaced
    if done.step < c.step:  # trained again after a resume: its effects are here already
        c.version = max(c.version, done.version)  # one that is told again may be older than the learner is
        return
    batch = state.batches.get(done.step)
    if done.step > c.step or batch is None:
        raise Malformed(f"step {done.step} was trained, and no batch was sent for it")
    if foreign := {*done.rejected}.difference(batch.replay, batch.fresh):
        raise Malformed(f"step {done.step} rejects {min(foreign)!r:.50}, which is not in its batch")
    c.version = max(c.version, done.version)
    records = {record.id: record for record in done.records}
    if config.replay.free_refresh:
        for id in batch.replay:
            if id not in batch.parts and (record := records.get(id)) and record.measured:
                state.buffer.refresh(id, record.headroom, record.drift)
                tx.save_row(id)
    headers = {id: tx.drop("fresh", id).header for id in batch.fresh if id in state.fresh}  # else it was damaged
    replayed = {state.buffer.row(id).prompt for id in batch.replay if id in state.buffer}
    c.same_prompt += len(replayed & {question_of(config, questions, header) for header in headers.values()})
    lengths.trained(c, [header for id, header in headers.items() if id not in done.rejected])
    for id, header in headers.items():
        prompt = question_of(config, questions, header)
        taken = header.payload_bytes if id in done.rejected else bytes_of(config, header)
        usable = header.fingerprints == c.fingerprints and id not in done.rejected
        if usable and policy.keeps(header) and not again.is_retired(state, prompt):
            a = group_advantages(header.rewards, config.learner.advantage)
            responses = policy.responses(header, a) if policy.responses else []
            tx.store(new_row(c.inserted, done.step, prompt, header, taken, records.get(id), a, responses))
            c.inserted += 1
        else:
            tx.retire(id, taken)
    for id in done.rejected:
        if id in state.buffer:  # no scan may ever come to find that it cannot be used
            tx.retire(id, tx.discard(id).bytes)
    left_out = {id: tx.drop("fresh", id).header for id in batch.left_out if id in state.fresh}
    for id, header in left_out.items():
        tx.retire(id, header.payload_bytes)
        c.filtered += 1
    for header in [*headers.values(), *left_out.values()]:
        if header.kind == TRAIN:
            again.heard(config, state, tx, policy, question_of(config, questions, header), header)
    again.clear_retired(state, tx)
    c.success = max(c.success, batch.stats["correct_share"] or 0.0)
    for id in policy.evicts(state.buffer, config.replay.capacity):
        tx.retire(id, tx.discard(id).bytes)
        c.evicted += 1
    _count(state, tx, batch, headers, left_out.values(), done)
    if config.replay.adaptive_tau > 0:
        measured = [records[id].k3 for id in batch.replay if id in records and abs(records[id].k3) <= LARGEST]
        kl, acceptance = sum(measured) / len(measured) if measured else None, batch.stats["acceptance"]
        c.gate = adaptive.adapt(gate_of(config, state), config.replay.tau, config.replay.adaptive_tau, acceptance, kl)
    c.step = done.step + 1
    c.refilled_in_step = 0
    tx.event("step", **step_event(config, state, batch, done, seconds))


def checkpoint_written(state: State, tx: Transaction, saved: Checkpointed) -> None:
    """Steps below `saved.step` are durable: what only they needed can go."""
    gone = [id for id, retired in state.retired.items() if retired.step < saved.step]
    for id in gone:
        tx.drop("retired", id)
    tx.delete_payloads(gone)
    for step in [step for step in state.batches if step < min(saved.step, state.counters.step)]:
        tx.drop("batches", str(step))


def run_finished(state: State, tx: Transaction) -> None:
    """The last step is trained and the last evaluation is in: let the learner and the people know, once."""
    state.counters.finished = True
    tx.send(tx.keys.work, Finish())
    tx.event("finished", step=state.counters.step, elapsed_s=time.time() - state.counters.started)


def _send(tx: Transaction, task: Task) -> None:
    tx.put("tasks", task.id, task)
    tx.send(tx.keys.tasks, task)


def _attempt_failed(
    config: Config, state: State, tx: Transaction, task: Task, failure: str, *, last: bool = False
) -> None:
    c = state.counters
    c.failed += 1
    log.warning("task %s, attempt %d: %s", task.id, task.attempt + 1, failure)
    attempt = task.attempt + 1
    no_step_left = task.kind == AGAIN and c.step + config.replay.max_lag >= config.run.steps
    if attempt < config.replay.max_attempts and not no_step_left and not last:
        version = task.min_version if task.kind == EVAL else c.step
        seed = attempt_seed(config, task.kind, task.number, attempt, task.round)
        _send(tx, msgspec.structs.replace(task, attempt=attempt, seed=seed, min_version=version))
        return
    tx.drop("tasks", task.id)
    tx.event("warning", service="replay", text=f"task {task.id} was given up after {attempt} attempts: {failure}")
    if task.kind == EVAL:
        evaluation.given_up(state, tx, task)
    elif task.kind == TRAIN:
        c.lost += 1
        c.settled.add(task.number)


def _count(
    state: State,
    tx: Transaction,
    batch: Composed,
    headers: dict[str, GroupHeader],
    left_out: Iterable[GroupHeader],
    done: Trained,
) -> None:
    c = state.counters
    numbers = [h.number for h in headers.values() if h.kind == TRAIN]
    c.trained_twice += sum(n in c.settled for n in numbers)
    for number in [*numbers, *(header.number for header in left_out if header.kind == TRAIN)]:
        c.settled.add(number)
    c.trained += len(headers)
    c.replayed += len(batch.replay)
    c.rejected += len(done.rejected)
    tx.note(
        {"step": done.step, "version": done.version, "time": time.time()}
        | {"fresh": batch.fresh, "fresh_numbers": numbers, "replay": batch.replay, "rejected": done.rejected}
        | {"left_out": batch.left_out}
    )


def _memory_full(config: Config, state: State) -> str:
    taken, allowed = state.payload_bytes / 2**20, config.replay.max_bytes / 2**20
    return (
        f"groups take {taken:.0f} MiB, replay.max_bytes is {allowed:.0f} MiB: only the next step's tasks are issued; "
        "lower replay.capacity or learner.checkpoint_every, or raise it."
    )
