"""Every prompt of a data set, tokenised as the actor will: is one longer than rollout.max_prompt_tokens,
or refused by the chat template?

Only the fast tokenizer and the chat template are used, so the command needs neither torch nor transformers for it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from services.actor.text import messages_of
from shared.errors import UserError
from shared.model_files import read_settings
from shared.prompts import Example, PromptSource

CHUNK = 1000
QUESTION_SHOWN = 80
_GIVEN: dict[str, Any] = {"add_generation_prompt": True, "tools": None, "documents": None}


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
        """The longest prompt; the first one of several. UserError where a row cannot be read or is refused."""
        best = Longest(0, "", -1)
        for start, examples in _chunks(prompts):
            texts = [self._text(example, start + offset) for offset, example in enumerate(examples)]
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for offset, encoding in enumerate(encodings):
                if len(encoding) > best.tokens:
                    best = Longest(start + offset, examples[offset].question, len(encoding))
        return best

    def _text(self, example: Example, index: int) -> str:
        from jinja2 import TemplateError

        messages = example.messages or messages_of(self._env_prompt, example.question)
        if self._template is None:
            return "\n".join(m["content"] for m in messages)
        try:
            return self._template.render(messages=messages, **_GIVEN, **_special_tokens(self._settings))
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(m["role"] for m in messages)
            raise UserError(
                f"the model's chat template refuses the prompt of example {index + 1} "
                f"('{shortened(example.question)}', of the roles {roles}): {error}. Write the rows as the template "
                "takes them, choose another env.prompt, or give the model another template."
            ) from None


def shortened(question: str) -> str:
    """On one line, at most QUESTION_SHOWN characters of it."""
    text = " ".join(question.split())
    return text if len(text) <= QUESTION_SHOWN else text[: QUESTION_SHOWN - 1] + "…"


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
    """With what transformers offers to a template, for nobody else's templates would do."""
    if template is None:
        return None
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what an assistant said and changes no text."""

        tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise ValueError(f"the chat template is no template: {error}") from None


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    values = {key: value for key, value in settings.items() if key.endswith("_token") and value}
    return {key: value["content"] if isinstance(value, dict) else value for key, value in values.items()}


def _read_json(path: Path) -> dict[str, Any]:
    return read_settings(path) if path.is_file() else {}
