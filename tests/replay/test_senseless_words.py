"""Well-formed words of a learner that make no sense: refused before anything has changed."""

import math
from typing import Any

import msgspec
import pytest
import redis

from benchmarks.peers import made_record
from services.replay import resync, transitions
from services.replay.buffer import StoredGroup
from services.replay.policies import get_policy
from services.replay.records import Composed, Counters
from services.replay.state import State, Transaction
from shared.config import Config, build
from shared.messages import Hello, Malformed, Trained
from shared.streams import Keys
from shared.versions import Version
from tests.replay.peers import Questions

STATS = {"acceptance": 0.5, "correct_share": 0.5, "tokens_sampled": 0, "mixed_groups": 0}


def _row(number: int) -> StoredGroup:
    return StoredGroup(
        id=f"t{number}", sequence=number, step=1, headroom_ref=0.5, headroom=0.4, drift=0.01, uses=1, tokens=3, bytes=9
    )


def _in_step_3(config: Config) -> tuple[State, Transaction]:
    """Step 3 is with the learner: it replays t3, and t4 is stored beside it."""
    state = State(Counters(started=0.0, step=3, version=Version(0, 3)))
    tx = Transaction(state, Keys(config.run.name), redis.Redis().pipeline())  # connects to nothing
    for number in (3, 4):
        tx.store(_row(number))
    tx.put("batches", "3", Composed(step=3, replay=[_row(3).id], fresh=[], stats=STATS))
    return state, tx


def _trained(config: Config, state: State, tx: Transaction, **changes: Any) -> None:
    fields = {"step": 3, "version": Version(0, 4), "records": [], "rejected": [], "metrics": {}} | changes
    policy = get_policy(config.replay.policy)
    transitions.step_trained(config, state, tx, policy, 50, Trained(**fields), 1.0)


def test_a_step_rejects_groups_of_its_own_batch_alone():
    config = build({})
    state, tx = _in_step_3(config)
    with pytest.raises(Malformed, match="rejects 't4', which is not in its batch"):
        _trained(config, state, tx, rejected=["t3", "t4"])
    assert (state.counters.step, state.counters.version, len(state.buffer)) == (3, Version(0, 3), 2)
    _trained(config, state, tx, rejected=["t3"])
    assert [row.id for row in state.buffer] == ["t4"]


@pytest.mark.parametrize("k3", [math.nan, math.inf, 1e300])
def test_the_gate_does_not_follow_a_divergence_that_is_none(k3: float):
    config = build({"replay": {"adaptive_tau": 1.0}})
    state, tx = _in_step_3(config)
    record = msgspec.structs.replace(made_record("t3", 8, 0.5, 0.1), k3=k3)
    _trained(config, state, tx, records=[record])
    assert state.counters.gate is not None and state.counters.gate.recent_kl is None


def test_a_learner_beyond_all_that_can_be_counted_is_not_followed():
    config = build({})
    state, tx = _in_step_3(config)
    with pytest.raises(Malformed, match="which no run comes to"):
        resync.learner_said_hello(config, state, tx, Questions(9), Hello(version=Version(0, 2**31 - 1)))
    assert (state.counters.step, state.counters.version, state.counters.issued) == (3, Version(0, 3), 0)
