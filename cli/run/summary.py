"""summary.json: one flat record of a run, computed from its events alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cli.run.view import idle_share, tokens_per_s

Records = Sequence[dict[str, Any]]


def summarise(records: Records) -> dict[str, Any]:
    """The figures of a run. A figure that nothing measured is None; seconds and bytes are base units.

    Steps trained again in a later lineage count once, with their last record.
    """
    steps = last_of_each_step(records)
    evals = sorted((r for r in records if r["kind"] == "eval"), key=lambda r: r["round"])
    first, last = (evals[0], evals[-1]) if evals else ({}, {})
    learner = [s.get("learner", {}) for s in steps]
    return {
        "steps": len(steps),
        "steps_lost": steps_lost(records),
        "env_latency": next((r["env_latency"] for r in records if r.get("env_latency")), ""),
        "seconds": session_seconds(records),
        "training_seconds": _total(steps, "seconds"),
        "em_first": first.get("em"),
        "em_last": last.get("em"),
        "eval_questions": last.get("n"),
        "em_per_source_last": last.get("per_source"),
        "reward_first": steps[0].get("reward_mean") if steps else None,
        "reward_last": steps[-1].get("reward_mean") if steps else None,
        **_groups(steps),
        **_replay(steps),
        **_learner(learner, steps),
        **_weights(records, learner),
        **_payload(steps, learner),
        **_machine(records),
        "finished": is_finished(records),
    }


def is_finished(records: Records) -> bool:
    """Whether the run has trained all the steps that its last session was to train: it may be resumed for more."""
    wanted = next((r.get("steps", 0) for r in reversed(records) if r["kind"] == "session"), 0)
    return any(r["kind"] == "finished" and r["step"] >= wanted for r in records)


def has_saved(records: Records) -> bool:
    """Whether a checkpoint was written, as a later step or a learner that resumed from it says: replay says `resumed`
    too, also of a run without one.
    """
    resumed = (r for r in records if r["kind"] == "resumed" and "lineage" in r)
    return any(r.get("step") for r in resumed) or any(r.get("learner", {}).get("checkpoint_s") for r in records)


def last_of_each_step(records: Records) -> list[dict[str, Any]]:
    """The step events in order, each step once; what came after a step is void once it is trained again."""
    steps: list[dict[str, Any]] = []
    for record in records:
        if record["kind"] == "step":
            while steps and steps[-1]["step"] >= record["step"]:
                steps.pop()
            steps.append(record)
    return steps


def steps_lost(records: Records) -> int:
    """Trained steps that are in no weights any more, since the checkpoint that held them was damaged. Each counts once,
    however often a learner said so.
    """
    said = [(r["lost_from"], r["lost_to"]) for r in records if "lost_from" in r and "lost_to" in r]
    lost, below = 0, 0
    for first, end in sorted(said):
        lost += max(0, end - max(first, below))
        below = max(below, end)
    return lost


def session_seconds(records: Records) -> float:
    """Wall time over all sessions, from the start of each to its last record; pauses between sessions do not count."""
    total, start, end = 0.0, None, 0.0
    for record in records:
        if record["kind"] == "session":
            total += end - start if start is not None else 0.0
            start = record["time"]
        end = record["time"]
    return round(total + (end - start if start is not None else 0.0), 3)


def _groups(steps: Records) -> dict[str, Any]:
    last = steps[-1] if steps else {}
    return {
        "env_seconds_mean": _mean(steps, "env_s_mean"),
        "groups_generated": last.get("groups_generated"),
        "groups_trained": _total(steps, "fresh_groups"),
        "groups_replayed": _total(steps, "replay_groups"),
        "groups_filtered": last.get("groups_filtered"),
        "groups_regenerated": last.get("groups_regenerated"),
        "groups_lost": last.get("groups_lost"),
        "groups_failed": last.get("groups_failed"),
        "groups_trained_twice": last.get("groups_trained_twice"),
        "same_prompts": last.get("same_prompts"),
        "rollouts_timed_out": last.get("rollouts_timed_out"),
        "length_offered_mean": last.get("length_offered_mean"),
        "length_trained_mean": last.get("length_trained_mean"),
        "tokens_sampled": _total(steps, "tokens_sampled"),
        "tokens_per_s": tokens_per_s(steps),
    }


def _replay(steps: Records) -> dict[str, Any]:
    accepted, scanned = _total(steps, "accepted"), _total(steps, "scanned")
    selection = _numbers(steps, "selection_ms")
    return {
        "acceptance": accepted / scanned if scanned else None,
        "accepted": accepted,
        "scanned": scanned,
        "lag_mean": _mean(steps, "lag_mean"),
        "lag_max": max(_numbers(steps, "lag_max"), default=None),
        "replay_age_mean": _mean(steps, "age_mean"),
        "scan_seconds_hidden": _total(steps, "scan_hidden_s"),
        "scan_seconds_exposed": _total(steps, "scan_exposed_s"),
        "selection_seconds_waited": _total(steps, "selection_wait_s"),
        "selection_ms_p99": float(np.percentile(selection, 99)) if selection else None,
    }


def _learner(learner: Records, steps: Records) -> dict[str, Any]:
    exposed, hidden = _total(steps, "scan_exposed_s"), _total(steps, "scan_hidden_s")
    return {
        "learner_idle_share": idle_share(list(learner)),
        "learner_seconds": {
            "waiting_for_groups": _total(learner, "wait_s"),
            "scanning_hidden": hidden,
            "scanning_exposed": exposed,
            "scanning": _total(learner, "scan_s"),
            "fetching": _total(learner, "fetch_s"),
            "reference": _total(learner, "reference_s"),
            "training": _total(learner, "train_s"),
            "publishing": _total(learner, "publish_s"),
            "checkpoint": _total(learner, "checkpoint_s"),
        },
        "replay_kl": _mean(learner, "replay_kl"),
        "tokens_trained": _total(learner, "tokens_trained"),
        "padding_share": _mean(learner, "padding_share"),
        "updates_left_out": _total(learner, "updates_left_out"),
    }


def _weights(records: Records, learner: Records) -> dict[str, Any]:
    swaps = [r for r in records if r["kind"] == "swap"]
    gaps, noise = _numbers(learner, "engine_gap"), _numbers(learner, "drift_noise")
    return {
        "engine_gap": float(np.median(gaps)) if gaps else None,
        "drift_noise": float(np.median(noise)) if noise else None,
        "swaps": len(swaps),
        "publish_to_swap_ms_p50": _median_ms(swaps, "seconds"),
        "swap_stall_ms_p50": _median_ms(swaps, "stall_s"),
        "weights_refused": sum(r["kind"] == "refused" for r in records),
    }


def _payload(steps: Records, learner: Records) -> dict[str, Any]:
    stored = (steps[-1] if steps else {}).get("payload_bytes_in")
    generated = (steps[-1] if steps else {}).get("groups_generated")
    served, reads = _total(learner, "payload_bytes_read"), _total(learner, "payload_reads")
    return {
        "payload_bytes_in": stored,
        "payload_bytes_out": served,
        "payload_bytes_in_per_group": stored / generated if stored and generated else None,
        "payload_bytes_out_per_group": served / generated if served and generated else None,
        "payload_reads": reads,
    }


def _machine(records: Records) -> dict[str, Any]:
    memory = [r for r in records if r["kind"] == "memory"]
    peak = max(memory, key=lambda r: r["peak_bytes"], default={})
    ready: dict[str, float] = {}
    for record in records:
        if record["kind"] == "ready":
            ready[record["service"]] = record["seconds"]
    return {
        "peak_memory_bytes": peak.get("peak_bytes"),
        "peak_memory_kind": peak.get("measure"),
        "seconds_to_ready": ready,
        "restarts": sum(r["kind"] == "restart" for r in records),
    }


def _numbers(records: Records, key: str) -> list[float]:
    values = [r.get(key) for r in records]
    return [v for v in values if isinstance(v, int | float) and np.isfinite(v)]


def _total(records: Records, key: str) -> float:
    total = sum(_numbers(records, key))
    return round(total, 6) if isinstance(total, float) else total


def _mean(records: Records, key: str) -> float | None:
    values = _numbers(records, key)
    return sum(values) / len(values) if values else None


def _median_ms(records: Records, key: str) -> float | None:
    values = _numbers(records, key)
    return float(np.median(values)) * 1000 if values else None
