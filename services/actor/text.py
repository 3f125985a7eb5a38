"""Between text and ids: the tokenizer, the chat template, and the instruction around a bare question."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from shared.errors import UserError
from shared.prompts import QUESTION

TEMPLATES = {
    "plain": "{question}",
    "search_r1": (
        "Work out the answer to the question at the end, step by step. Whenever something new reaches you, first "
        "reason about it between <think> and </think>. If your reasoning shows that you lack a fact, ask the search "
        "engine by writing <search> your query </search>: it returns the best matching passages between <information> "
        "and </information>, and you may ask as often as you need. Once nothing is missing, write only the final "
        "answer between <answer> and </answer>, without explanation, like this: <answer> Mount Example </answer>.\n"
        "Question: {question}\n"
    ),
    "math": "Solve the problem. Reason step by step, and put the final answer within \\boxed{}.\n\n{question}",
    "qwen_math": "{question}",
}
# What Qwen's mathematics models were trained to hear before a problem; a bare question of qwen_math has it in front.
SYSTEM = {"qwen_math": "Please reason step by step, and put your final answer within \\boxed{}."}


def instruction(prompt: str, question: str) -> str:
    """`env.prompt` (a template's name or a text that holds {question}) around a question."""
    text = TEMPLATES.get(prompt, prompt)
    if "{question}" not in text:
        raise UserError(
            f"env.prompt = '{prompt}' is neither one of {', '.join(TEMPLATES)} nor a text with {{question}}."
        )
    return text.replace("{question}", question)


def messages_of(prompt: str, question: str) -> list[dict[str, str]]:
    """The chat that a bare question becomes under `env.prompt`."""
    system = [{"role": "system", "content": SYSTEM[prompt]}] if prompt in SYSTEM else []
    return [*system, {"role": "user", "content": instruction(prompt, question)}]


class PromptRefused(UserError):
    """The chat template does not take these messages: no fault of the actor's, and no other attempt will help."""


class Codec:
    """A model's tokenizer, with nothing added or taken away behind our back."""

    def __init__(self, directory: Path) -> None:
        """Raises UserError where the directory has no tokenizer that loads."""
        from transformers import AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(
                directory,
                local_files_only=True,
                trust_remote_code=False,  # no code of a model's folder is run
            )
        except Exception as error:  # noqa: BLE001  the binding raises bare Exceptions
            raise UserError(f"{directory} has no tokenizer that loads ({_first_line(error)}).") from None
        specials = {*self.tokenizer.all_special_tokens}
        specials |= {t.content for t in self.tokenizer.added_tokens_decoder.values() if t.special}
        self.special_tokens: tuple[str, ...] = tuple(sorted(specials, key=lambda t: (-len(t), t)))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without begin or end tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def prompt(self, messages: Sequence[dict[str, str]], template: str) -> list[int]:
        """Chat messages through the chat template, up to where the policy begins to write.

        Raises PromptRefused with the template's own words.
        """
        chat = [
            said for m in messages for said in (messages_of(template, m["content"]) if m["role"] == QUESTION else [m])
        ]
        if self.tokenizer.chat_template is None:
            return self.encode("\n".join(m["content"] for m in chat))
        try:
            text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except (TemplateError, TypeError, ValueError) as error:  # whatever somebody's template does with a prompt
            raise PromptRefused(f"the chat template refuses the prompt: {_first_line(error)}") from None
        return self.encode(text)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
