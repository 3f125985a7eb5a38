"""A process behind `shared.rewards.own`: `own_worker FILE NAME` calls function NAME of FILE for each JSON line.

A line {"question", "text", "ground_truth", "data_source", "extra"} is answered by {"reward", "correct", "parts"}, or by
{"error"}: what there is instead of a score. What the function prints goes to the log of whoever asked.
"""

import importlib.util
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import IO, Any, cast

from shared.messages import LARGEST
from shared.workers import START_S, allow_seconds, pipes

GIVEN = ("question", "text", "ground_truth", "data_source", "extra")
# what others call the same
FOREIGN = {
    "solution_str": "text",
    "completion": "text",
    "completions": "text",
    "prompts": "question",
    "prompt": "question",
}
FOREIGN |= {"extra_info": "extra", "answer": "ground_truth", "label": "ground_truth"}
PART = re.compile(r"[A-Za-z]\w{0,39}", re.ASCII)
RIGHT = 1.0  # from here on a reward that comes without a word about `correct` is one of a right answer


class Unusable(Exception):
    """The file or the function cannot be a reward; the text says why."""


def main(file: str, name: str) -> None:
    """Answer until the input ends."""
    asked, answers = pipes()
    asked.get()
    allow_seconds(START_S)
    try:
        function, parameters = load(Path(file), name)
    except Unusable as error:
        _write(answers, {"error": str(error)})
        return
    _write(answers, {})
    while True:
        question = json.loads(asked.get())
        allow_seconds(question.pop("timeout_s") * (os.cpu_count() or 1))
        _write(answers, called(function, {key: question[key] for key in parameters}))


def load(file: Path, name: str) -> tuple[Callable[..., Any], list[str]]:
    """The function, and which of GIVEN it takes. Raises Unusable in words that follow "reward.function = ... "."""
    named = f"reward_{file.stem}"  # a file called json.py must not take json's place
    spec = importlib.util.spec_from_file_location(named, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise Unusable("names no Python file: check the path")
    if neighbour := _hidden(file.resolve().parent):
        raise Unusable(f"lies beside {neighbour}, which it could not import: `shared` is Headrace's own. Rename it")
    sys.path.insert(0, str(file.parent))  # it may import its neighbours
    module = sys.modules[named] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # noqa: BLE001  SystemExit too: whatever a file does when it is imported
        raise Unusable(f"cannot be imported: it raised {_shown(error)}") from None
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
        raise Unusable(f"has no function '{name}'; there are {', '.join(functions) or 'none'}")
    return function, taken(function, name)


def _hidden(folder: Path) -> str:
    """A neighbour with the name of the package that this process runs from, or nothing."""
    ours = Path(__file__).parents[1]
    if folder == ours.parent:
        return ""
    if (folder / f"{ours.name}.py").exists():
        return f"{ours.name}.py"
    return f"{ours.name}/" if any((folder / ours.name).glob("*.py")) else ""


def taken(function: Callable[..., Any], name: str) -> list[str]:
    """Which of GIVEN a function takes by name. Raises Unusable where it cannot be called with these."""
    if inspect.iscoroutinefunction(function):
        raise Unusable(f"is asynchronous, and a reward is a plain function: write def {name}")
    parameters = inspect.signature(function).parameters.values()
    found = []
    for p in parameters:
        if p.name in GIVEN and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            found.append(p.name)
        elif p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            if p.name in GIVEN:
                raise Unusable(f"takes '{p.name}', which it does not take by name: leave the / out")
            hint = f": '{FOREIGN[p.name]}' is what it means" if p.name in FOREIGN else ""
            raise Unusable(f"takes '{p.name}', which is none of {', '.join(GIVEN)}{hint}")
    return list(GIVEN) if any(p.kind is p.VAR_KEYWORD for p in parameters) else found


def called(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """{"reward", "correct", "parts"}, or {"error"} in words that follow "the reward of a rollout "."""
    try:
        return _read(function(**arguments))
    except BaseException as error:  # noqa: BLE001  a reward meets whatever a policy writes; SystemExit is no exception
        return {"error": f"raised {_shown(error)}"}


def _read(result: Any) -> dict[str, Any]:
    """As `called`. A result may be of any class, and raise whatever it likes when it is looked at."""
    given = result if isinstance(result, Mapping) else {"reward": result}
    reward, correct = _plain(given.get("reward")), _plain(given.get("correct"))
    if "reward" in given and reward is None:
        return {"reward": None, "correct": False, "parts": {}}
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return {"error": f"is {result!r:.80}, which is no reward"}
    if abs(reward) > LARGEST:
        return {"error": f"is {result!r:.80}, and a reward is a number from -{LARGEST:,.0f} to {LARGEST:,.0f}"}
    correct = reward >= RIGHT if correct is None else bool(correct)
    return {"reward": float(reward), "correct": correct, "parts": _parts(given)}


def _parts(given: Mapping[Any, Any]) -> dict[str, float]:
    """The further keys with a number, whose names may stand in metrics."""
    named = {k: v for k, v in given.items() if isinstance(k, str) and PART.fullmatch(k) and isinstance(v, Real)}
    numbers = cast("dict[str, float]", named)
    return {k: float(v) for k, v in numbers.items() if k not in ("reward", "correct") and abs(v) <= LARGEST}


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", None) in (1, None) else value


def _write(answers: IO[str], answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def _shown(error: BaseException) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200].rstrip(": .")
    return text.encode(errors="backslashreplace").decode()  # half a surrogate, which no log and no event can hold


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
