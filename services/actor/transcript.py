"""A rollout as a person reads it, for the events stream."""

from services.actor.group import Group
from shared.messages import Task

_LONGEST = 8000  # characters of one transcript

TRAINING_SHOWN_EVERY, EVAL_SHOWN_FIRST = 50, 16


def is_shown(task: Task) -> bool:
    """The first questions of each evaluation, and one training group in fifty."""
    if task.kind == "eval":
        return task.number < EVAL_SHOWN_FIRST
    return task.number % TRAINING_SHOWN_EVERY == 0


def transcript_event(task: Task, group: Group) -> dict[str, object]:
    """Fields of a "rollout" event: the first rollout of the group, with who wrote what."""
    first = group.rollouts[0]
    question = task.messages[-1]["content"]
    blocks = [f"[{who}] {text.strip()}" for who, text in [("prompt", question), *first.pieces]]
    return {
        "id": task.id,
        "task_kind": task.kind,
        "round": task.round,
        "number": task.number,
        "question": question[:_LONGEST],
        "ground_truth": task.ground_truth,
        "reward": group.header.rewards[0],
        "correct": group.header.correct[0],
        "status": first.status,
        "version": str(group.header.version_max),
        "text": "\n".join(blocks)[:_LONGEST],
    }
