"""A reward of one's own: what it is given, what it may return, and what it may do without harm."""

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.own_reward.working import working
from shared import config
from shared.errors import UserError
from shared.fingerprints import fingerprints
from shared.prompts import open_prompts
from shared.rewards.own import Asked, RewardFailed, score_own, try_out
from shared.rewards.own_worker import GIVEN, Unusable, called, load

ASKED = Asked(ground_truth=["4", "four"], question="2 + 2?", data_source="sums", extra='{"level": 3}')
REWARDS = """
import sys, time
import numpy

def everything(question, text, ground_truth, *, data_source, extra, more=1):
    assert (question, data_source, extra, more) == ("2 + 2?", "sums", {"level": 3}, 1)
    print("printed into the middle of the answers")
    return float(text in ground_truth)

def by_keyword(**given):
    return len(given)

def nothing_but_the_text(text):
    return numpy.float32(len(text))

def partial(text):
    return {"reward": 0.3, "correct": text == "4", "length": 3}

def many(text):
    odd = {"a name": 1, "text": text, "huge": 10**400, "nan": float("nan"), "list": [1], 3: 3.0, "x" * 50: 1.0}
    return {"reward": 1, "correct": True, "form": numpy.float32(0.2), "is_short": True, **odd}

def unscored(text):
    return None

def nan(text):
    return float("nan")

def a_string(text):
    return "1.0"

def beyond(text):
    return -1e9

def a_list(text):
    return [1.0]

def raises(text):
    raise KeyError("of the reward")

def leaves(text):
    sys.exit(0)

def sleeps(text):
    time.sleep(600)

def never_ends(text):
    import re
    return bool(re.match("(a+)+$", "a" * 60 + "b"))

def of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0

def positional(text, /):
    return 1.0

async def asynchronous(text):
    return 1.0
"""


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The value of reward.function for a function above."""
    file = tmp_path_factory.mktemp("own") / "json.py"  # a name that a module of Python has too
    file.write_text(REWARDS)
    return lambda name: f"{file}:{name}"


@pytest.mark.slow
def test_what_it_is_given_and_what_comes_back(rewards: Callable[[str], str]):
    for text, reward in (("four", 1.0), ("five", 0.0)):
        scored = score_own(rewards("everything"), text, ASKED, 20)
        assert (scored.reward, scored.correct) == (reward, reward == 1.0)
    with pytest.raises(RewardFailed, match="raised AssertionError"):
        score_own(rewards("everything"), "four", Asked(ground_truth=["4"]), 20)
    abstained = score_own(rewards("unscored"), "four", ASKED, 20)
    assert (abstained.reward, abstained.parts) == (None, {"abstained": 1.0})


@pytest.mark.parametrize(
    ("name", "reward", "correct"),
    [
        ("by_keyword", 5.0, True),
        ("nothing_but_the_text", 1.0, True),
        ("partial", 0.3, True),
        ("unscored", None, False),
    ],
)
def test_what_it_may_return(rewards: Callable[[str], str], name: str, reward: float | None, correct: bool):
    answer = answer_of(rewards(name))
    assert answer["reward"] == (None if reward is None else pytest.approx(reward))
    assert answer["correct"] is correct
    json.dumps(answer)


def test_further_numbers_are_parts_of_the_reward(rewards: Callable[[str], str]):
    assert answer_of(rewards("partial"))["parts"] == {"length": 3.0}
    assert answer_of(rewards("many"))["parts"] == {"form": pytest.approx(0.2), "is_short": 1.0}
    assert answer_of(rewards("nothing_but_the_text"))["parts"] == {}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nan", "is nan, which is no reward"),
        ("a_string", "is '1.0', which is no reward"),
        ("a_list", "is [1.0], which is no reward"),
        ("beyond", "is -1000000000.0, and a reward is a number from -1,000,000 to 1,000,000"),
        ("raises", "raised KeyError: 'of the reward'"),
        ("leaves", "raised SystemExit: 0"),
    ],
)
def test_what_is_no_reward(rewards: Callable[[str], str], name: str, why: str):
    assert answer_of(rewards(name)) == {"error": why}


def answer_of(reference: str) -> dict:
    """What the process says, called in this one."""
    file, _, name = reference.rpartition(":")
    function, parameters = load(Path(file), name)
    given = {"question": "", "text": "4", "ground_truth": ["4"], "data_source": "", "extra": {}}
    return called(function, {key: given[key] for key in parameters})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("of_verl", "takes 'solution_str', which is none of .*: 'text' is what it means"),
        ("positional", "takes 'text', which it does not take by name"),
        ("asynchronous", "is asynchronous"),
        ("of_nobody", "has no function 'of_nobody'; there are everything, by_keyword"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_with_its_reason(
    rewards: Callable[[str], str], name: str, why: str
):
    file, _, name = rewards(name).rpartition(":")
    with pytest.raises(Unusable, match=why):
        load(Path(file), name)


@pytest.mark.parametrize("neighbour", ["shared.py", "shared/parts.py"])
def test_a_neighbour_that_our_own_package_would_hide_is_refused(tmp_path: Path, neighbour: str):
    file, beside = tmp_path / "r.py", tmp_path / neighbour
    file.write_text("def score(text):\n    return 1.0\n")
    (tmp_path / "shared" / "of_data").mkdir(parents=True)  # hides nothing: no module
    load(file, "score")
    beside.touch()
    with pytest.raises(Unusable, match=r"lies beside shared(\.py|/), which it could not import: .* Rename it"):
        load(file, "score")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sleeps", "never_ends"])
def test_one_that_hangs_is_killed_and_the_next_call_has_a_process(rewards: Callable[[str], str], name: str):
    started = time.monotonic()
    with pytest.raises(RewardFailed, match=r"has taken more than 0\.5 s"):
        score_own(rewards(name), "4", ASKED, 0.5)
    assert score_own(rewards("partial"), "4", ASKED, 20).correct
    assert time.monotonic() - started < 20


@pytest.mark.slow
def test_a_process_that_hangs_ends_with_its_caller(rewards: Callable[[str], str]):
    script = (
        "import os, threading, time; from shared.rewards.own import *; from shared.rewards.own import _pool\n"
        f"reference = {rewards('sleeps')!r}\n"
        "call = lambda: score_own(reference, '4', Asked(ground_truth=[]), 600)\n"
        "threading.Thread(target=call, daemon=True).start(); time.sleep(2)\n"
        "import psutil; print(psutil.Process().children()[0].pid, flush=True); os._exit(0)"
    )
    pid = int(subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60))
    deadline = time.monotonic() + 10
    process = Path(f"/proc/{pid}/cmdline")
    while process.exists() and "own_worker" in process.read_text():
        assert time.monotonic() < deadline, "it sleeps on for nobody"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_is_a_sentence(tmp_path: Path):
    file = tmp_path / "broken.py"
    file.write_text("import nowhere_to_be_found\n")
    with pytest.raises(UserError, match=r"broken.py:score' cannot be imported: it raised ModuleNotFoundError: No mod"):
        score_own(f"{file}:score", "4", ASKED, 5)
    file.write_text("import os; os._exit(1)\n")
    with pytest.raises(UserError, match="ends the process that imports it"):
        score_own(f"{file}:other", "4", ASKED, 5)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_come_whole_and_need_no_answer(tmp_path: Path, form: str):
    rows = [
        {"question": "who?", "answer": None, "level": 3, "extra_info": {"tests": ["a", "\ud800"]}},
        {"question": "who?", "answer": "A", "level": 4, "extra_info": {"tests": []}},
    ]
    file = tmp_path / f"set.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows[0]["extra_info"]["tests"] = ["a"]
        pq.write_table(pa.Table.from_pylist(rows), file)
    prompts = open_prompts(str(file), whole_rows=True)
    assert json.loads(prompts[0].extra) == {key: rows[0][key] for key in ("level", "extra_info")}
    assert prompts[0].extra.isascii()
    assert [prompts[i].ground_truth for i in (0, 1)] == [[], ["A"]]
    with pytest.raises(UserError, match="has no answer"):
        open_prompts(str(file))


def test_columns_that_are_too_large_to_travel_with_each_task_are_refused(tmp_path: Path):
    file = tmp_path / "set.jsonl"
    file.write_text(json.dumps({"question": "who?", "answer": "A", "more": "x" * 2**20}) + "\n")
    assert open_prompts(str(file))[0].extra == ""
    with pytest.raises(UserError, match="line 1 has 1048588 characters in other columns, and 1048576 may travel"):
        open_prompts(str(file), whole_rows=True)


@pytest.mark.slow
def test_it_is_tried_on_a_row(rewards: Callable[[str], str], tmp_path: Path):
    file = tmp_path / "set.jsonl"
    file.write_text(json.dumps({"question": "2 + 2?", "answer": "4", "data_source": "sums", "level": 3}) + "\n")
    row = open_prompts(str(file), whole_rows=True)[0]
    try_out(rewards("everything"), row, 5)
    with pytest.raises(UserError, match=r"raises' raised KeyError: 'of the reward', called on the first row of data"):
        try_out(rewards("raises"), row, 5)


def test_stored_groups_go_by_the_text_of_the_file_not_by_its_place(tmp_path: Path):
    def mark(folder: str, text: str) -> str:
        file = tmp_path / folder / "r.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return fingerprints(config.load(None, ["--reward.function", f"{file}:f"], {}), tmp_path)["reward"]

    assert mark("a", "f = len") == mark("b", "f = len") != mark("a", "f = max")


def test_the_file_beside_the_configuration_is_meant(tmp_path: Path):
    (tmp_path / "r.py").touch()
    (tmp_path / "run.toml").write_text('[reward]\nfunction = "r.py:score"\n')
    assert config.load(tmp_path / "run.toml", environ={}).reward.function == f"{tmp_path / 'r.py'}:score"


@pytest.mark.parametrize("value", ["r.py", "score", "r.py:", "r.py:a b", "os:system"])
def test_what_names_no_function_is_refused(value: str):
    with pytest.raises(UserError, match=r"names no function: write FILE.py:NAME"):
        config.load(None, [f"--reward.function={value}"], {})


def test_credit_for_form_is_not_mixed_in():
    with pytest.raises(UserError, match=r"reward.format_score is added by reward.kind"):
        config.load(None, ["--reward.function=r.py:score", "--reward.format_score=true"], {})


def test_the_page_shows_the_example_as_it_is_and_names_every_parameter():
    page = (Path(__file__).resolve().parents[2] / "docs" / "rewards.md").read_text()
    assert inspect.getsource(working) in page
    assert all(f"| `{name}` |" in page for name in GIVEN)
