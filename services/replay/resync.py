"""Agreeing with the learner on where the run stands: after each load of replay's state, and when a learner comes up.

    Sync(step, batches) -->  learner  --> Trained again, for batches whose result was lost;  Hello(version, cursor)

A server that died may have lost its last second, or everything; the learner and its checkpoints know better how far
training is, and the cursor in each batch says how far the data set was used by then. Nothing is selected or sent
between the question and the answer.
"""

from services.replay.state import State, Transaction
from services.replay.tasks import train_task
from shared.config import Config
from shared.messages import AGAIN, EVAL, MOST_OPEN, TRAIN, Cursor, Finish, Hello, Malformed, Sync
from shared.prompts import PromptSource


def ask(state: State, tx: Transaction) -> None:
    """Tell the learner where replay stands; it answers with Hello."""
    tx.send(tx.keys.work, Sync(step=state.counters.step, batches=sorted(state.batches)))


def cursor_after(state: State, taken: list[str]) -> Cursor:
    """How far the data set is used once the fresh groups `taken` are trained."""
    c = state.counters
    running = [task.number for task in state.tasks.values() if task.kind == TRAIN]
    arrived = [g.header.number for id, g in state.fresh.items() if g.header.kind == TRAIN and id not in taken]
    return Cursor(issued=c.issued, lost=c.lost, refilled=c.refilled, untrained=sorted(running + arrived))


def overtaken(state: State, hello: Hello) -> bool:
    """Whether a later word has come already: a learner never goes back, and a new one has a new lineage."""
    return state.counters.version is not None and hello.version < state.counters.version


def learner_said_hello(config: Config, state: State, tx: Transaction, train: PromptSource, hello: Hello) -> bool:
    """Where the learner is, by a word that was not overtaken. True when that is news, so that nothing selected before
    it holds.

    Behind what was trained: it trains the batches it kept again. Ahead of it: replay goes on from the learner's step.
    """
    c = state.counters
    if hello.version.number * config.learner.batch >= 2**31 - MOST_OPEN:  # more tasks than can be counted
        raise Malformed(f"the learner says that it is at version {hello.version}, which no run comes to")
    news = hello.version != c.version or hello.again
    if c.version is not None and c.version.lineage != hello.version.lineage:
        tx.event("resumed", service="replay", version=hello.version, step=c.step)
    if hello.version.number > c.step:
        _go_on_from(config, state, tx, train, hello)
    c.version = hello.version
    if hello.again:
        _send_again(state, tx, hello.version.number)
    elif c.finished and news:
        tx.send(tx.keys.work, Finish())  # a life that begins after the end, whose Finish the one before has taken
    return news


def _send_again(state: State, tx: Transaction, first: int) -> None:
    ask(state, tx)
    for step in sorted(step for step in state.batches if step >= first):
        tx.send(tx.keys.work, state.batches[step].message)
    if state.counters.finished:
        tx.send(tx.keys.work, Finish())


def _go_on_from(config: Config, state: State, tx: Transaction, train: PromptSource, hello: Hello) -> None:
    """The server lost steps that were trained: what they used is retired, and what is open is rolled out again."""
    c, cursor = state.counters, hello.cursor
    text = f"the learner is at step {hello.version.number}, replay was at {c.step}: going on from the learner's."
    tx.event("warning", service="replay", text=text)
    c.step = hello.version.number
    used = {id for step, batch in state.batches.items() if step < c.step for id in [*batch.fresh, *batch.left_out]}
    open_numbers = set(cursor.untrained) if cursor else None

    def is_over(id: str, number: int, due: int) -> bool:
        return id in used or (due < c.step if open_numbers is None else number not in open_numbers)

    for id, group in list(state.fresh.items()):
        if group.header.kind == AGAIN or is_over(id, group.header.number, group.due):
            tx.retire(id, tx.drop("fresh", id).header.payload_bytes)
    running = [task for task in state.tasks.values() if task.kind != EVAL]
    for task in running:
        if task.kind == AGAIN or is_over(task.id, task.number, task.min_version + config.replay.max_lag):
            tx.drop("tasks", task.id)
    left = {t.number for t in state.tasks.values() if t.kind == TRAIN}
    left |= {group.header.number for group in state.fresh.values()}
    if cursor is None:
        c.issued = max(c.issued, c.step * config.learner.batch + len(left) + c.gone)
        c.lost += c.issued - c.gone - c.step * config.learner.batch - len(left)
        c.settled.all_but(c.issued, sorted(left))
        return
    c.issued, c.lost, c.refilled = cursor.issued, cursor.lost, cursor.refilled
    c.settled.all_but(c.issued, cursor.untrained)
    for number in sorted(set(cursor.untrained) - left):
        task = train_task(config, train, number, attempt=0, min_version=c.step)
        tx.put("tasks", task.id, task)
        tx.send(tx.keys.tasks, task)
