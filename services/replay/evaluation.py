"""Evaluation rounds: held-out questions asked through the same actors, one task per question.

Round v asks under version v or newer. Round 0 is over before the first batch is sent, the last round starts after the
last step, so these two see one version each; rounds between do not stop the training, and say which versions they saw.
"""

from services.replay.state import Outcome, State, Transaction
from services.replay.tasks import eval_task
from shared.config import Config
from shared.messages import EVAL, GroupHeader, Task
from shared.prompts import PromptSource
from shared.versions import Version


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


def start_round(config: Config, state: State, held_out: PromptSource | None, round: int) -> list[Task]:
    """The tasks of a round that is due and was not started yet."""
    if held_out is None or round in state.counters.evals or not round_due(config, round):
        return []
    state.counters.evals.append(round)
    return [eval_task(config, held_out, round, n, attempt=0) for n in range(questions(config, held_out))]


def answered(state: State, tx: Transaction, header: GroupHeader) -> None:
    """File the outcome of one question."""
    right = [c for c, r in zip(header.correct, header.rewards, strict=True) if r is not None]
    outcome = Outcome(
        header.data_source, _mean(header.scored), _mean(right) or 0.0, header.version_min, header.version_max
    )
    _file(state, tx, header.round, header.number, outcome)


def given_up(state: State, tx: Transaction, task: Task) -> None:
    """A question that no attempt could answer: it is counted as failed, not as wrong."""
    version = state.counters.version or Version(0, task.round)
    nothing = Outcome(task.data_source, None, 0.0, version, version)
    _file(state, tx, task.round, task.number, nothing)


def _file(state: State, tx: Transaction, round: int, number: int, outcome: Outcome) -> None:
    tx.put("evals", f"{round}:{number}", outcome)
    if any(t.kind == EVAL and t.round == round for t in state.tasks.values()):
        return
    outcomes = [tx.drop("evals", field) for field in list(state.evals) if field.startswith(f"{round}:")]
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
