"""Tasks from prompts: which question is task n, with which seed, as a pure function of the run's seed and n.

The n-th training task asks the question at place n of an endless series of shuffled epochs, so the cursor is the
number of issued tasks; a failed task is issued again under its own number, so no question is skipped over a restart.
"""

from shared.config import Config
from shared.messages import AGAIN, EVAL, TRAIN, GroupHeader, Task
from shared.prompts import Example, PromptSource, order
from shared.seeds import derive

_KIND_SEED = {TRAIN: 0, EVAL: 1, AGAIN: 3}  # 2 and 4 are the seeds of a step's choices


def train_task(config: Config, prompts: PromptSource, number: int, attempt: int, min_version: int) -> Task:
    """The training task of this number."""
    index = question_index(config, len(prompts), number)
    return Task(
        id=f"t{number:08d}",
        kind=TRAIN,
        number=number,
        attempt=attempt,
        seed=attempt_seed(config, TRAIN, number, attempt),
        group_size=config.rollout.group_size,
        temperature=config.rollout.temperature,
        min_version=min_version,
        **_prompt(prompts[index]),
    )


def question_index(config: Config, questions: int, number: int) -> int:
    """The place in the data set of the question that training task `number` asks."""
    return order(config.run.seed, questions, number) if config.data.shuffle else number % questions


def question_of(config: Config, questions: int, header: GroupHeader) -> int:
    """The same for the training group that came of it, or of asking the question again."""
    return header.number if header.kind == AGAIN else question_index(config, questions, header.number)


def eval_task(config: Config, prompts: PromptSource, round: int, number: int, attempt: int) -> Task:
    """Question `number` of the evaluation of version `round`; the same seeds in every round."""
    return Task(
        id=f"e{round:08d}-{number:06d}",
        kind=EVAL,
        number=number,
        attempt=attempt,
        seed=attempt_seed(config, EVAL, number, attempt),
        group_size=config.eval.samples,
        temperature=config.eval_temperature(config.eval.samples),
        min_version=round,
        round=round,
        **_prompt(prompts[number]),
    )


def again_task(config: Config, prompts: PromptSource, question: int, step: int, group_size: int) -> Task:
    """The training prompt at place `question` of the data set, asked again at the beginning of `step`."""
    return Task(
        id=f"a{step:08d}-{question:08d}",
        kind=AGAIN,
        number=question,
        attempt=0,
        seed=attempt_seed(config, AGAIN, question, 0, step),
        group_size=group_size,
        temperature=config.rollout.temperature,
        min_version=step,
        round=step,
        **_prompt(prompts[question]),
    )


def attempt_seed(config: Config, kind: str, number: int, attempt: int, round: int = 0) -> int:
    """The seed of one attempt at one task. An evaluation has the same ones in every round."""
    parts = (number, attempt, round) if kind == AGAIN else (number, attempt)
    return derive(config.run.seed, _KIND_SEED[kind], *parts)


def _prompt(example: Example) -> dict:
    return {
        "data_source": example.data_source,
        "messages": example.chat,
        "ground_truth": list(example.ground_truth),
        "extra": example.extra,
    }
