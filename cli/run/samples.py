"""Sample rollouts in readable text: the same held-out questions before and after, then some from training."""

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
TRAINING_SHOWN = 12


def as_markdown(records: Sequence[Record]) -> str:
    """samples.md of a run."""
    parts = ["# Sample rollouts\n"]
    pairs = before_and_after(records)
    if pairs:
        parts.append("## Held-out questions, before and after training\n")
    for before, after in pairs:
        parts.append(f"### {_question(before)}\n\nexpected: {_expected(before)}\n")
        parts.append(f"Before training, {verdict(before)}:\n\n{_block(before)}\n")
        parts.append(f"After training, {verdict(after)}:\n\n{_block(after)}\n")
    training = [r for r in _rollouts(records) if not _is_eval(r)]
    if training:
        parts.append("## From training, in order\n")
    parts += [
        f"### {_question(r)}\n\nexpected: {_expected(r)}; {verdict(r)}\n\n{_block(r)}\n"
        for r in _spread(training, TRAINING_SHOWN)
    ]
    return "\n".join(parts)


def before_and_after(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Pairs of rollouts of one held-out question in the first and in the last evaluation."""
    evals = [r for r in _rollouts(records) if _is_eval(r)]
    rounds = sorted({r.get("round", -1) for r in evals})
    if len(rounds) < 2:
        return []
    first = {_question(r): r for r in evals if r.get("round") == rounds[0]}
    last = {_question(r): r for r in evals if r.get("round") == rounds[-1]}
    return [(first[q], last[q]) for q in first if q in last]


def verdict(rollout: Record) -> str:
    """right or wrong, and the reward."""
    reward = rollout.get("reward")
    shown = "unscored" if reward is None else f"reward {reward:g}"
    return f"{'right' if rollout.get('correct') else 'wrong'} ({shown})"


def _rollouts(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r["kind"] == "rollout"]


def _is_eval(rollout: Record) -> bool:
    return rollout.get("task_kind") == "eval"  # prompts that are asked again have rounds too


def _spread(items: Sequence[Record], count: int) -> list[Record]:
    if len(items) <= count:
        return list(items)
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def _question(rollout: Record) -> str:
    return " ".join(str(rollout.get("question", "")).split())


def _expected(rollout: Record) -> str:
    truth = rollout.get("ground_truth", "")
    return " | ".join(map(str, truth)) if isinstance(truth, list) else str(truth)


def _block(rollout: Record) -> str:
    return "```text\n" + str(rollout.get("text", "")).strip().replace("```", "'''") + "\n```"
