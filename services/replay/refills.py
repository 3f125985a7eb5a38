"""Groups that a policy drops when they arrive, so that another task takes their place, and how many are too many."""

from services.replay.state import State, Transaction
from shared.config import Config
from shared.messages import TRAIN, GroupHeader


def dropped(state: State, tx: Transaction, header: GroupHeader) -> None:
    """Forget a group that no step will train. If admission counted it, it issues another task."""
    c = state.counters
    c.filtered += 1
    if header.kind == TRAIN:
        c.refilled += 1
        c.refilled_in_step += 1
        c.settled.add(header.number)
    tx.delete_payloads([header.id])


def starved(config: Config, state: State) -> str:
    """A sentence when this step's refills have reached their limit; the state goes on under a higher one."""
    c, b, rounds = state.counters, config.learner.batch, config.replay.max_refill_rounds
    if c.refilled_in_step < rounds * b:
        return ""
    return (
        f"step {c.step} has dropped {c.refilled_in_step} groups without a spread of rewards and has {len(state.fresh)} "
        f"of {b} with one; replay.max_refill_rounds = {rounds} allows {rounds} x {b}: the questions are too easy or "
        "too hard for this policy, so take others, or raise that limit and resume."
    )
