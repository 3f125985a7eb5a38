"""One prompt with its acceptable answers, and how the rows of the usual data sets become one.

| form | question | answers |
|---|---|---|
| verl, Search-R1 | prompt: [{role, content}], maybe question | reward_model.ground_truth: text, list or {target} |
| question answering | question | golden_answers, answers, answer, ground_truth or target |
| mathematics | problem or question | answer (GSM8K's follows ####), final_answer, else the last box of solution |
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shared.rewards.answers import last_boxed, targets

QUESTION = "question"  # the role of a message that is a bare question and still needs env.prompt around it
QUESTION_KEYS = ("question", "problem", "query")
ANSWER_KEYS = ("golden_answers", "answers", "answer", "final_answer", "ground_truth", "target")
MOST_EXTRA = 2**20
COLUMNS = ("id", "data_source", "prompt", "messages", "reward_model", "solution", *QUESTION_KEYS, *ANSWER_KEYS)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A prompt. `messages` is a chat the data set brings ready-made; without one the question goes into a
    template.
    """

    id: str
    data_source: str
    messages: list[dict[str, str]] | None
    question: str
    ground_truth: list[str]
    extra: str = ""  # the columns that are none of COLUMNS, as JSON, where whole rows were asked for

    @property
    def chat(self) -> list[dict[str, str]]:
        """The messages, or the bare question as one."""
        return self.messages or [{"role": QUESTION, "content": self.question}]


def read_row(row: Mapping[str, Any], *, source: str, index: int, whole: bool = False) -> Example:
    """The example in a row of any of the forms; `source` and `index` name it where it has no id of its own.

    whole: for a reward of one's own, which may want the other columns, and no answer.

    Raises ValueError saying what the row lacks.
    """
    messages = _messages(row)
    question = _question(row, messages)
    if not question:
        raise ValueError(f"has no question: one of {', '.join(QUESTION_KEYS)}, or a prompt of messages, is needed.")
    reward_model = row.get("reward_model")
    ground_truth = targets(reward_model.get("ground_truth")) if isinstance(reward_model, Mapping) else []
    for key in ANSWER_KEYS:
        ground_truth = ground_truth or targets(row.get(key))
    if not ground_truth and isinstance(row.get("solution"), str):
        ground_truth = targets(last_boxed(row["solution"]))
    if not ground_truth and not whole:
        raise ValueError(f"has no answer: reward_model.ground_truth or one of {', '.join(ANSWER_KEYS)} is needed.")
    own = row.get("id")
    return Example(
        id=f"{source}:{index}" if own is None or own == "" else _encodable(str(own)),
        data_source=_encodable(str(row.get("data_source") or source)),
        messages=messages,
        question=_encodable(question),
        ground_truth=[_encodable(answer) for answer in ground_truth],
        extra=_extra(row) if whole else "",
    )


def _extra(row: Mapping[str, Any]) -> str:
    """Travels with every task of the row, hence the limit."""
    extra = json.dumps({key: value for key, value in row.items() if key not in COLUMNS}, default=str)
    if len(extra) > MOST_EXTRA:
        raise ValueError(f"has {len(extra)} characters in other columns, and {MOST_EXTRA} may travel: drop some.")
    return extra


def _encodable(text: str) -> str:
    """JSON can name half of a surrogate pair, which no message and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def _messages(row: Mapping[str, Any]) -> list[dict[str, str]] | None:
    chat = row.get("prompt")
    if chat is None or isinstance(chat, str):
        chat = row.get("messages")
    if chat is None:
        return None
    if not isinstance(chat, Iterable):
        raise ValueError('has a prompt that is not a list of {"role", "content"}.')
    messages = []
    for message in chat:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ValueError('has a prompt that is not a list of {"role", "content"}.')
        messages.append({"role": _encodable(message["role"]), "content": _encodable(message["content"])})
    return messages or None


def _question(row: Mapping[str, Any], messages: list[dict[str, str]] | None) -> str:
    for key in (*QUESTION_KEYS, "prompt"):
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
    asked = [message["content"] for message in messages or [] if message["role"] == "user"]
    return asked[-1].strip() if asked else ""
