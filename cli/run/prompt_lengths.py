"""Every prompt of a data set, tokenised as the actor will: is one longer than rollout.max_prompt_tokens?

Only the fast tokenizer and the chat template are used, so the command needs neither torch nor transformers for it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.actor.text import messages_of
from shared.prompts import Example, PromptSource

CHUNK = 1000


@dataclass(frozen=True)
class Longest:
    """The longest prompt of a data set: its place, its question, its tokens."""

    index: int
    question: str
    tokens: int


class PromptTokens:
    """Counts the tokens of prompts with a model folder's tokenizer.json and chat template."""

    def __init__(self, model_dir: Path, env_prompt: str) -> None:
        """Raises FileNotFoundError where there is no tokenizer.json; ValueError where it cannot be read."""
        from tokenizers import Tokenizer

        file = model_dir / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(file)
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001  the binding raises bare Exceptions
            raise ValueError(f"{file} is not a tokenizer: {error}") from None
        self._settings = _read_json(model_dir / "tokenizer_config.json")
        self._template = _compile(_template_text(model_dir, self._settings))
        self._env_prompt = env_prompt

    def longest(self, prompts: PromptSource) -> Longest:
        """The longest prompt; the first one of several. UserError where a row cannot be read."""
        best = Longest(0, "", -1)
        for start, examples in _chunks(prompts):
            texts = [self._text(example) for example in examples]
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for offset, encoding in enumerate(encodings):
                if len(encoding) > best.tokens:
                    best = Longest(start + offset, examples[offset].question, len(encoding))
        return best

    def _text(self, example: Example) -> str:
        messages = example.messages or messages_of(self._env_prompt, example.question)
        if self._template is None:
            return "\n".join(m["content"] for m in messages)
        return self._template.render(messages=messages, add_generation_prompt=True, **_special_tokens(self._settings))


def _chunks(prompts: PromptSource) -> Iterator[tuple[int, list[Example]]]:
    for start in range(0, len(prompts), CHUNK):
        yield start, [prompts[i] for i in range(start, min(start + CHUNK, len(prompts)))]


def _template_text(model_dir: Path, settings: dict[str, Any]) -> str | None:
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = settings.get("chat_template")
    if isinstance(template, list):
        return {t["name"]: t["template"] for t in template}.get("default")
    return template


def _compile(template: str | None) -> Any:
    if template is None:
        return None
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


def _refuse(message: str) -> None:
    raise ValueError(f"the chat template refuses a prompt: {message}")


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    values = {key: value for key, value in settings.items() if key.endswith("_token") and value}
    return {key: value["content"] if isinstance(value, dict) else value for key, value in values.items()}


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}
