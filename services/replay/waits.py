"""What the next step waits for."""

from services.replay import evaluation
from services.replay.state import State
from shared import messages
from shared.config import Config
from shared.prompts import PromptSource


def waiting_for(config: Config, state: State, held_out: PromptSource | None, heard: bool, fresh_here: bool) -> str:
    """In words; `heard`: whether the learner has said where it is; `fresh_here`: the next step's fresh groups are."""
    c = state.counters
    if c.finished:
        return ""
    if c.version is None:
        return "the learner to come up"
    if c.step >= config.run.steps or evaluation.round_open(state, 0):
        left = evaluation.left(config, state, held_out)
        return f"the evaluation of version {c.step}: {left} questions are left"
    if c.version.number != c.step:
        return f"the learner, which is at step {c.version.number} again, to reach step {c.step}"
    if c.step in state.batches:
        return f"the learner to train step {c.step}"
    if not heard:
        return "the learner to say where it is"
    if not fresh_here:
        running = sum(task.kind != messages.EVAL for task in state.tasks.values())
        return (
            f"fresh groups for step {c.step}: {len(state.fresh)} of {config.learner.batch} are here, "
            f"{running} tasks are with the actors"
        )
    return f"the learner to scan for step {c.step}"
