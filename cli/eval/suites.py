"""The question sets that have a name, and what `--suite` means: a file, a hub name, one of these, or a group of them.

Names stand for the sets on the model hub that published figures use; where the hub cannot be reached, give a file. A
set's questions are all asked, unless --limit says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.errors import UserError
from shared.evaluation.records import Question
from shared.nearest import hint
from shared.prompts import Example, PromptSource, open_prompts
from shared.prompts.sources import HUB_NAME

Task = Literal["search", "math"]
_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"

SUITES: dict[str, tuple[Task, str]] = {
    "nq": ("search", f"{_FLASHRAG}/nq:test"),
    "triviaqa": ("search", f"{_FLASHRAG}/triviaqa:test"),
    "popqa": ("search", f"{_FLASHRAG}/popqa:test"),
    "hotpotqa": ("search", f"{_FLASHRAG}/hotpotqa:dev"),
    "2wikimultihopqa": ("search", f"{_FLASHRAG}/2wikimultihopqa:dev"),
    "musique": ("search", f"{_FLASHRAG}/musique:dev"),
    "bamboogle": ("search", f"{_FLASHRAG}/bamboogle:test"),
    "aime24": ("math", "HuggingFaceH4/aime_2024:train"),
    "aime25": ("math", "math-ai/aime25:test"),
    "amc23": ("math", "math-ai/amc23:test"),
    "math500": ("math", "HuggingFaceH4/MATH-500:test"),
    "minerva": ("math", "math-ai/minervamath:test"),
    "olympiadbench": ("math", "Hothan/OlympiadBench/OE_TO_maths_en_COMP:train"),
    "gsm8k": ("math", "openai/gsm8k/main:test"),
}
GROUPS: dict[str, list[str]] = {
    kind: [name for name, (task, _) in SUITES.items() if task == kind] for kind in ("search", "math")
}


@dataclass(frozen=True)
class Suite:
    """A set of questions. `task` is None where the name does not say it."""

    name: str
    prompts: PromptSource
    task: Task | None


def task_of(words: Sequence[str]) -> Task | None:
    """The task that the named sets among these have; None where only files and hub names are given.

    UserError where they differ: one evaluation asks in one way.
    """
    tasks: set[Task] = {SUITES[name][0] for word in words for name in _names(word)}
    if len(tasks) > 1:
        raise UserError("the suites are of two kinds, search and math: evaluate them in two commands.")
    return next(iter(tasks), None)


def check_words(words: Sequence[str]) -> None:
    """Raise UserError for a word that can be neither a file, nor a hub name, nor the name of a suite."""
    for word in words:
        if _names(word) or Path(word).is_file() or (HUB_NAME.fullmatch(word) and not Path(word).suffix):
            continue
        if Path(word).suffix or Path(word).is_dir():
            raise UserError(f"--suite {word} is not a file here: check the path.")
        known = [*SUITES, *GROUPS]
        raise UserError(f"--suite {word} is neither a file nor the name of a suite; {hint(word.lower(), known)}")


def open_suites(words: Sequence[str], whole_rows: bool = False) -> list[Suite]:
    """Every suite the words name, once each, in order. UserError in a sentence where one cannot be read.

    whole_rows: as for `open_prompts`, of what is no named suite.
    """
    suites: dict[str, Suite] = {}
    for word in words:
        names = _names(word)
        for name in names:
            suites.setdefault(name, _open_named(name))
        if not names and word not in suites:
            suites[word] = Suite(word, open_prompts(word, whole_rows=whole_rows), None)
    return list(suites.values())


def questions_of(suites: Sequence[Suite], limit: int) -> list[Question]:
    """Their questions in order, at most `limit` of each suite (0: all). Sources of the same name are told apart."""
    questions: list[Question] = []
    owner: dict[str, str] = {}
    places: dict[str, int] = {}
    for suite in suites:
        for at in range(min(len(suite.prompts), limit or len(suite.prompts))):
            example = suite.prompts[at]
            source = suite.name if suite.name in SUITES else example.data_source
            if owner.setdefault(source, suite.name) != suite.name:
                source = f"{suite.name}:{source}"
            index = places[source] = places.get(source, -1) + 1
            questions.append(_question(len(questions), source, index, example))
    return questions


def _question(number: int, source: str, index: int, example: Example) -> Question:
    return Question(
        number=number,
        source=source,
        index=index,
        id=example.id,
        messages=example.chat,
        ground_truth=list(example.ground_truth),
        extra=example.extra,
    )


def _names(word: str) -> list[str]:
    """The named sets a word stands for; a file of that name in the working directory comes first."""
    if Path(word).is_file():
        return []
    plain = word.lower().replace("-", "").replace("_", "")
    return GROUPS.get(plain) or ([plain] if plain in SUITES else [])


def _open_named(name: str) -> Suite:
    task, source = SUITES[name]
    try:
        return Suite(name, open_prompts(source), task)
    except UserError as error:
        raise UserError(f"suite {name}: {error}") from None
