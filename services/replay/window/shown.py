"""What the replay window is told: the state as small columns, nothing of a group's tokens.

Three answers, each with a tag that changes when it does, so that a page that asks again gets nothing new for nothing:
`now` (a glance), `groups` (the scatter and the table) and `services.replay.window.history` (the steps).
"""

from collections.abc import Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.replay.service import Replay
from services.replay.state import State
from services.replay.transitions import gate_of

GROUPS_SHOWN = 4096  # those of highest cached Headroom
PASSED_BY, REFUSED, ACCEPTED = 0, 1, 2  # in the last selection


def groups_tag(state: State) -> str:
    """Changes whenever a row of the buffer may have: with a batch, a trained step, an arrival that drops groups."""
    c = state.counters
    parts = (c.step, c.step in state.batches, c.inserted, c.evicted, c.rejected, len(state.buffer))
    return "-".join(str(int(part)) for part in parts)


def now(replay: Replay, state: State) -> dict[str, Any]:
    """Where the run is and what it waits for."""
    c, config = state.counters, replay.config
    return {
        "run": config.run.name,
        "policy": replay.policy.name,
        "gated": replay.policy.gated,
        "step": c.step,
        "steps": config.run.steps,
        "version": str(c.version) if c.version else None,
        "tau": gate_of(config, state).tau,
        "select": config.replay_groups,
        "batch": config.learner.batch,
        "capacity": config.replay.capacity,
        "max_lag": config.replay.max_lag,
        "buffer_groups": len(state.buffer),
        "fresh_groups": len(state.fresh),
        "tasks_running": len(state.tasks),
        "payload_bytes": state.payload_bytes,
        "max_bytes": config.replay.max_bytes,
        "finished": c.finished,
        "waiting_for": replay.waiting_for,
        "waiting_s": round(replay.waiting_s, 1),
        "totals": {
            "generated": c.generated,
            "trained": c.trained,
            "replayed": c.replayed,
            "failed": c.failed,
            "lost": c.lost,
            "evicted": c.evicted,
            "rejected": c.rejected,
        },
        "groups": groups_tag(state),
    }


def groups(replay: Replay, state: State, limit: int = GROUPS_SHOWN) -> dict[str, Any]:
    """The stored groups as columns, by cached Headroom, descending; `mark` is what the last selection made of each."""
    buffer = state.buffer
    slots = buffer.highest(buffer.headroom, limit)
    ids = buffer.ids(slots)
    step, accepted, scanned = last_selection(replay, state)
    return {
        "tag": groups_tag(state),
        "step": state.counters.step,
        "total": len(buffer),
        "selected_step": step,
        "id": ids,
        "stored": buffer.step[slots].tolist(),
        "headroom": _rounded(buffer.headroom[slots]),
        "headroom_ref": _rounded(buffer.headroom_ref[slots]),
        "drift": [None if value != value else float(f"{value:.4g}") for value in buffer.drift[slots].tolist()],
        "uses": buffer.uses[slots].tolist(),
        "tokens": buffer.tokens[slots].tolist(),
        "bytes": buffer.bytes[slots].tolist(),
        "right": buffer.right[slots].tolist(),
        "scored": buffer.scored[slots].tolist(),
        "mark": [ACCEPTED if id in accepted else REFUSED if id in scanned else PASSED_BY for id in ids],
    }


def last_selection(replay: Replay, state: State) -> tuple[int, Set[str], Set[str]]:
    """Step, replayed and scanned ids of the last selection; after a restart, of the last batch that is on record."""
    if replay.last_selection[0] >= 0 or not state.batches:
        return replay.last_selection
    batch = state.batches[max(state.batches)]
    return batch.step, set(batch.replay), set()


def is_known(state: State, id: str) -> bool:
    """Whether a group of this id is here: stored, fresh, or waiting for the checkpoint behind which it is deleted."""
    return id in state.buffer or id in state.fresh or id in state.retired


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return np.round(values, 4).tolist()
