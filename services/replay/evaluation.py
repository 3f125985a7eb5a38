"""Evaluation rounds: held-out questions asked through the same actors, one task per question.

Round v asks under version v or newer. Round 0 is over before the first batch is sent, the last round starts after the
last step, so these two see one version each; rounds between do not stop the training, and say which versions they saw.
No more questions are out than the actors play at once: those that wait lie in front of the next step's training tasks.
"""

from services.replay.records import Outcome
from services.replay.state import State, Transaction
from services.replay.tasks import eval_task
from shared.config import Config
from shared.messages import EVAL, GroupHeader, Task
from shared.prompts import PromptSource
from shared.versions import Version

AT_ONCE = 1024  # at most, so that a wake-up costs no more with many actors than with few


def round_due(config: Config, step: int) -> bool:
    """Whether version `step` is evaluated: the first, the last, and every `eval.every` between."""
    return step in (0, config.run.steps) or (config.eval.every > 0 and step % config.eval.every == 0)


def questions(config: Config, held_out: PromptSource | None) -> int:
    """How many questions a round asks."""
    return 0 if held_out is None else min(len(held_out), config.eval.limit or len(held_out))


def round_open(state: State, round: int) -> bool:
    """Whether a round has been issued and is not over."""
    return round in state.counters.evals and round not in state.counters.evals_done


def any_open(state: State) -> bool:
    """Whether any round is: a run does not end before all are over."""
    return any(round_open(state, round) for round in state.counters.evals)


def at_once(config: Config, actors: int) -> int:
    """How many questions so many actors play at once; one actor's where none is known yet."""
    rollouts = config.actor.groups * config.rollout.group_size
    return min(AT_ONCE, max(1, actors) * -(-rollouts // config.eval.samples))


def tasks_due(config: Config, state: State, tx: Transaction, held_out: PromptSource | None, actors: int) -> list[Task]:
    """Begin the round of the current step if it is due, and give what may go out of the rounds that have begun.

    actors: that are alive.
    """
    c = state.counters
    if held_out is not None and c.step not in c.evals and round_due(config, c.step):
        c.evals.append(c.step)
        c.evals_next[c.step] = 0
    if not c.evals_next:
        return []
    room = at_once(config, actors) - sum(task.kind == EVAL for task in state.tasks.values())
    asked = questions(config, held_out)
    tasks: list[Task] = []
    for round, first in sorted(c.evals_next.items()):
        until = min(asked, first + room - len(tasks))
        if held_out is not None:
            tasks += [eval_task(config, held_out, round, n, attempt=0) for n in range(first, until)]
        c.evals_next[round] = max(first, until)
        if until >= asked:
            del c.evals_next[round]
            if first >= asked:  # resumed with fewer questions, or with none
                _end_if_over(state, tx, round)
    return tasks


def left(config: Config, state: State, held_out: PromptSource | None) -> int:
    """How many questions of rounds that have begun are not answered."""
    to_come = sum(max(0, questions(config, held_out) - first) for first in state.counters.evals_next.values())
    return to_come + sum(task.kind == EVAL for task in state.tasks.values())


def answered(state: State, tx: Transaction, header: GroupHeader) -> None:
    """File the outcome of one question."""
    right = [c for c, r in zip(header.correct, header.rewards, strict=True) if r is not None]
    outcome = Outcome(
        header.data_source, _mean(header.scored), _mean(right) or 0.0, header.version_min, header.version_max
    )
    tx.put("evals", f"{header.round}:{header.number}", outcome)
    _end_if_over(state, tx, header.round)


def given_up(state: State, tx: Transaction, task: Task) -> None:
    """A question that no attempt could answer: it is counted as failed, not as wrong."""
    _failed(state, tx, task.round, task.number, task.data_source)
    _end_if_over(state, tx, task.round)


def lost(state: State, tx: Transaction, round: int, number: int) -> None:
    """The same of one whose task nobody can read any more, where its round is open; `end_those_over` comes after it."""
    if round_open(state, round) and f"{round}:{number}" not in state.evals:
        _failed(state, tx, round, number, "")


def end_those_over(state: State, tx: Transaction) -> None:
    """End the rounds of which nothing is asked any more."""
    for round in state.counters.evals:
        if round_open(state, round):
            _end_if_over(state, tx, round)


def _failed(state: State, tx: Transaction, round: int, number: int, source: str) -> None:
    version = state.counters.version or Version(0, round)
    tx.put("evals", f"{round}:{number}", Outcome(source, None, 0.0, version, version))


def _end_if_over(state: State, tx: Transaction, round: int) -> None:
    if round in state.counters.evals_next or any(t.kind == EVAL and t.round == round for t in state.tasks.values()):
        return
    outcomes = tx.drop_all("evals", [field for field in state.evals if field.startswith(f"{round}:")])
    state.counters.evals_done.append(round)
    tx.event("eval", round=round, **_summary(outcomes))


def _summary(outcomes: list[Outcome]) -> dict:
    answered = [o for o in outcomes if o.reward is not None]
    sources = sorted({o.data_source for o in answered})
    return {
        "n": len(answered),
        "failed": len(outcomes) - len(answered),
        "em": _mean([o.correct for o in answered]),
        "reward": _mean([o.reward for o in answered]),
        "per_source": {s: _mean([o.correct for o in answered if o.data_source == s]) for s in sources},
        "version_min": min((o.version_min for o in answered), default=None),
        "version_max": max((o.version_max for o in answered), default=None),
    }


def _mean(values: list) -> float | None:
    return sum(values) / len(values) if values else None
