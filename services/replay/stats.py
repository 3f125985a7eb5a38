"""The numbers of one step, for people: how the batch came about, and what the learner said of it."""

import time
from typing import Any

import numpy as np

from services.replay import lengths
from services.replay.buffer import Buffer, StoredGroup
from services.replay.records import Composed
from services.replay.rules import has_spread
from services.replay.selection import Selection
from services.replay.state import State
from shared.config import Config
from shared.messages import AGAIN, TIMED_OUT, TRUNCATED, GroupHeader, Part, Record, Trained

WHAT_IF_FACTORS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


def batch_stats(
    step: int,
    selection: Selection,
    replay: list[StoredGroup],
    fresh: list[GroupHeader],
    waited_s: float,
) -> dict[str, Any]:
    """Statistics of a batch at the moment it is sent. Rewards, lags and tokens are those of the fresh groups
    that the step took, in the batch or not.

    waited_s: how long the batch waited for the selection alone, its fresh groups being there, in seconds. Of it the
    scan is exposed for at most as long as the learner scanned; the rest is the way there and back, and what else the
    learner or this process did meanwhile.
    """
    scored = [(r, c) for h in fresh for r, c in zip(h.rewards, h.correct, strict=True) if r is not None]
    lags = [step - h.version_min.number for h in fresh]
    ages = [step - row.step for row in replay]
    measured = [selection.refreshed[row.id] for row in replay if row.id in selection.refreshed]
    drifts = [record.drift for record in selection.refreshed.values()]
    scanned = [selection.buffer.row(id) for id in selection.refreshed if id in selection.buffer]
    compared = {}
    if selection.counterfactual is not None:
        compared = {"counterfactual": selection.counterfactual.stats(step, replay)}
    return {
        "taken_groups": len(fresh),
        "again_groups": sum(h.kind == AGAIN for h in fresh),
        "replay_groups": len(replay),
        "tau": selection.tau,
        "scanned": selection.scanned,
        "scan_depth": selection.scanned / len(selection.buffer) if len(selection.buffer) else None,
        "accepted": len(selection.accepted),
        "acceptance": len(selection.accepted) / selection.scanned if selection.scanned else None,
        "scanned_age_mean": _mean([step - row.step for row in scanned]),
        "scanned_drift_median": float(np.median(drifts)) if drifts else None,
        "ages": ages,
        "distinct_ages": len(set(ages)),
        "reuse": reuse(selection.buffer, replay),
        "age_mean": _mean(ages),
        "lag_mean": _mean(lags),
        "lag_max": max(lags),
        "headroom_mean": _mean([record.headroom for record in measured]),
        "drift_mean": _mean([record.drift for record in measured]),
        "k3_mean": _mean([record.k3 for record in measured]),
        "entropy_mean": _mean([record.entropy for record in measured]),
        "what_if_tau": what_if_tau(drifts, selection.tau),
        "what_if_kl": what_if_kl(list(selection.refreshed.values()), selection.tau),
        "reward_mean": _mean([reward for reward, _ in scored]),
        "reward_parts": reward_parts(fresh),
        "correct_share": _mean([correct for _, correct in scored]),
        "mixed_groups": sum(h.mixed for h in fresh),
        "spread_groups": sum(has_spread(h) for h in fresh),
        "unscored": sum(len(h.rewards) for h in fresh) - len(scored),
        "tokens_sampled": sum(sum(h.sampled_tokens) for h in fresh),
        "searches_mean": _mean([searches for h in fresh for searches in h.searches]),
        "truncated_share": _mean([status == TRUNCATED for h in fresh for status in h.statuses]),
        "timed_out_share": _mean([status == TIMED_OUT for h in fresh for status in h.statuses]),
        **lengths.of_responses(fresh),
        "generation_s_mean": _mean([h.seconds for h in fresh]),
        "env_s_mean": _mean([h.env_seconds for h in fresh]),
        "selection_ms": 1000 * selection.seconds,
        "scan_s": selection.scan_seconds,
        "scan_exposed_s": min(waited_s, selection.scan_seconds),
        "scan_hidden_s": max(0.0, selection.scan_seconds - waited_s),
        "selection_wait_s": waited_s,
    } | compared


def reward_parts(fresh: list[GroupHeader]) -> dict[str, float]:
    """The mean of each part of the reward over the scored rollouts that have it."""
    parts: dict[str, list[tuple[float, int]]] = {}
    for header in fresh:
        for name, one in header.reward_parts.items():
            parts.setdefault(name, []).append(one)
    return {name: sum(total for total, _ in of) / sum(n for _, n in of) for name, of in sorted(parts.items())}


def trained_rollouts(replay: list[StoredGroup], fresh: list[GroupHeader], parts: dict[str, Part]) -> dict[str, int]:
    """How many stored and fresh responses the batch trains on: those with a reward, or those that `parts` names."""
    stored = [len(parts[row.id].rollouts) if row.id in parts else row.scored for row in replay]
    new = [len(parts[h.id].rollouts) if h.id in parts else len(h.scored) for h in fresh]
    return {"replay_rollouts": sum(stored), "fresh_rollouts": sum(new)}


def step_event(config: Config, state: State, batch: Composed, done: Trained, seconds: float) -> dict[str, Any]:
    """The `step` record: one line of metrics.jsonl."""
    c = state.counters
    return {
        "step": done.step,
        "steps": config.run.steps,
        "version": done.version,
        "seconds": seconds,
        **batch.stats,
        "tokens_per_s": batch.stats["tokens_sampled"] / seconds if seconds > 0 else None,
        "buffer_groups": len(state.buffer),
        "groups_generated": c.generated,
        "rollouts_generated": c.generated_rollouts,
        "rollouts_timed_out": c.timed_out_rollouts,
        "groups_trained": c.trained,
        "groups_replayed": c.replayed,
        "groups_lost": c.lost,
        "groups_filtered": c.filtered,
        "groups_regenerated": c.regenerated,
        "groups_failed": c.failed,
        "groups_rejected": c.rejected,
        "groups_trained_twice": c.trained_twice,
        "same_prompts": c.same_prompt,
        **lengths.means(c),
        "payload_bytes_in": c.payload_bytes,
        "elapsed_s": time.time() - c.started,
        "learner": done.metrics,
    }


def reuse(buffer: Buffer, replay: list[StoredGroup]) -> dict[str, float] | None:
    """How the uses so far, this batch included, are spread over the stored groups; None while nothing was replayed.

    max: of one group; gini: 0 when all were used equally often, towards 1 when one has all the uses; top_tenth: the
    share of all uses that the most used tenth of the groups has.
    """
    uses = buffer.uses.astype(np.float64)
    np.add.at(uses, buffer.places(row.id for row in replay), 1)
    ordered = np.sort(uses[buffer.slots()])
    n, total = len(ordered), ordered.sum()
    if total == 0:
        return None
    gini = float(2 * (np.arange(1, n + 1) * ordered).sum() / (n * total) - (n + 1) / n)
    top = float(ordered[-max(1, round(n / 10)) :].sum() / total)
    return {"max": int(ordered[-1]), "gini": gini, "top_tenth": top}


def what_if_tau(drifts: list[float], tau: float) -> dict[str, float]:
    """The acceptance other gates would have had on the groups that were scanned, by multiple of tau."""
    values = np.asarray(drifts)
    return {f"{factor:g}": float((values <= factor * tau).mean()) for factor in WHAT_IF_FACTORS if len(values)}


def what_if_kl(records: list[Record], tau: float) -> dict[str, float]:
    """The mean KL (k3) to the policy of the scanned groups that other gates would have let in, by multiple of tau."""
    inside = {f"{f:g}": [r.k3 for r in records if r.drift <= f * tau] for f in WHAT_IF_FACTORS}
    return {factor: float(np.mean(k3)) for factor, k3 in inside.items() if k3}


def _mean(values: list) -> float | None:
    return float(np.mean(values)) if values else None
