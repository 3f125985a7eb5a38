"""What comes of code and files that others write: a reward's result and signature, and the records a run is told by."""

import inspect
import json
import tempfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cli.export import write_events, write_table
from cli.run.recorder import EVENTS, METRICS, read_records
from shared.errors import UserError
from shared.rewards.own_worker import GIVEN, Unusable, called, taken
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_FLOAT, ANY_INT, JSON, PIECES

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))


class _Bad:
    """Whatever is done with it fails."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def fails(self, *_: Any) -> Any:
        raise self._error("\ud800 of the reward")

    __repr__ = __bool__ = __len__ = __getitem__ = __iter__ = __float__ = item = fails


class _BadMapping(_Bad, Mapping):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


_BAD = st.sampled_from([ValueError, RecursionError, SystemExit, KeyboardInterrupt])
_NUMBERS: st.SearchStrategy[Any] = st.one_of(
    ANY_INT,
    ANY_FLOAT,
    st.booleans(),
    st.none(),
    st.sampled_from([10**400, -(10**400), Decimal("1.5"), Decimal("NaN"), Fraction(1, 3), 1j]),
    ANY_FLOAT.map(np.float64),
    st.sampled_from([np.float32(0.5), np.bool_(True), np.int64(1), np.array(0.5), np.array([0.5]), np.array([1, 2])]),
    st.sampled_from([np.array([]), np.datetime64("2020"), np.array(["x"]), np.str_("1")]),
)
_RESULTS: st.SearchStrategy[Any] = st.one_of(
    _NUMBERS,
    JSON,
    st.builds(_Bad, _BAD),
    st.builds(_BadMapping, _BAD),
    st.dictionaries(
        st.sampled_from(["reward", "correct", "length"]) | ANY_INT, _NUMBERS | JSON | st.builds(_Bad, _BAD)
    ),
)


def check_result(result: Any) -> bool:
    """True where a function's result is a reward; the answer goes through the worker's pipe either way."""
    answer = called(lambda: result, {})
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    if "error" in answer:
        assert answer["error"].strip() and len(answer["error"].encode()) < 1000
        return False
    assert type(answer["reward"]) in (float, type(None)) and type(answer["correct"]) is bool
    return True


_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_STARRED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_NAMES = st.sampled_from([*GIVEN, "solution_str", "prompts", "completions", "self", "more", "x"])


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., Any]:
    """Of any signature that Python allows, but for positional-only parameters with a default: `bind` is wrong there."""
    drawn = sorted(draw(st.lists(st.sampled_from([Parameter.POSITIONAL_ONLY, *_NAMED, *_STARRED]), max_size=5)))
    kinds = [kind for i, kind in enumerate(drawn) if kind not in _STARRED or kind not in drawn[:i]]
    names = draw(st.lists(_NAMES, min_size=len(kinds), max_size=len(kinds), unique=True))
    parameters, optional = [], False
    for kind, name in zip(kinds, names, strict=True):
        optional = kind in _NAMED and (draw(st.booleans()) or (optional and kind is Parameter.POSITIONAL_OR_KEYWORD))
        parameters.append(Parameter(name, kind, default=1 if optional else Parameter.empty))

    def function(*args: Any, **given: Any) -> float:
        signature.bind(*args, **given)
        return 1.0

    signature = Signature(parameters)
    function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return function


def check_signature(function: Callable[..., Any]) -> bool:
    """True where it can be called with what it is said to take."""
    try:
        names = taken(function, "f")
    except Unusable as error:
        assert str(error).strip()
        return False
    assert set(names) <= set(GIVEN)
    answer = called(function, dict.fromkeys(names, "x"))
    assert (answer.get("reward"), answer.get("correct")) == (1.0, True), (inspect.signature(function), answer)
    return True


_VALUES = _NUMBERS.filter(lambda v: isinstance(v, int | float) and not isinstance(v, np.generic)) | JSON
_METRICS = st.dictionaries(PIECES | st.text(max_size=6), _VALUES, max_size=4)
_TIMES = st.floats(0, 4e9)


@st.composite
def runs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """metrics.jsonl and events.jsonl; the process that wrote them may have been killed in the middle of a line."""

    def lines(records: list[dict[str, Any]]) -> bytes:
        data = "".join(json.dumps(record) + "\n" for record in records).encode()
        return data[: len(data) - draw(st.sampled_from([0, 0, 1, 5, 1000]))] if records else b""

    def record(kind: str, number: str) -> st.SearchStrategy[dict[str, Any]]:
        fixed = st.fixed_dictionaries({"kind": st.just(kind), number: st.integers(0, 2**40), "time": _TIMES})
        return st.builds(lambda metrics, own: metrics | {"learner": metrics} | own, _METRICS, fixed)

    steps = draw(st.lists(record("step", "step"), max_size=3))
    evals = draw(st.lists(record("eval", "round"), max_size=2))
    return lines(steps), lines([*steps, *evals])


def check_export(case: tuple[bytes, bytes]) -> bool:
    """True where there was something to export; the file is what TensorBoard's own reader takes (tests/cli)."""
    for name, data in zip((METRICS, EVENTS), case, strict=True):
        (FOLDER / name).write_bytes(data)
    if steps := read_records(FOLDER / METRICS):
        write_table(FOLDER / "table.csv", steps)
        assert (FOLDER / "table.csv").stat().st_size
    for old in (FOLDER / "out").glob("*"):
        old.unlink()
    try:
        write_events(FOLDER, FOLDER / "out", follow=False)
    except UserError:
        return False
    return True


TARGETS = [
    Target("reward's results", _RESULTS, check_result),
    Target("reward's names", functions(), check_signature),
    Target("exports", runs(), check_export, cost=10),
]
