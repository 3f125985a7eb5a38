"""Prompts that no actor can use, one after another: a run that is given nothing else ends with what is wrong of them.

An actor refuses a prompt at once (too long, or not to the chat template's taste), and another takes its place while
the usable ones still run; so it takes many in a row to know that hardly any is usable. The count is this process's
alone: whoever resumes with other prompts starts anew.
"""

from services.replay.state import State
from shared.config import Config
from shared.messages import GroupHeader

AT_LEAST, ROUNDS = 100, 20  # refusals in a row: under one usable prompt in 20 looks like none


def count(state: State, header: GroupHeader) -> None:
    """A group of an open training task has arrived."""
    if header.refused:
        state.refused, state.refusal = state.refused + 1, header.failure
    elif header.usable:
        state.refused = 0


def none_usable(config: Config, state: State) -> str:
    """A sentence when there were too many in a row, else nothing."""
    if state.refused < max(AT_LEAST, ROUNDS * (config.replay.max_lag + 1) * config.learner.batch):
        return ""
    return (
        f"none of the last {state.refused} prompts of data.train could be used, the last one since {state.refusal}: "
        "mend the data, or choose another env.prompt or rollout.max_prompt_tokens, and resume."
    )
