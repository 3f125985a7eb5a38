"""A reward and an environment of one's own through every process: the examples that docs/ works through."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from cli.run.recorder import read_records
from examples.calculator.server import answer
from examples.own_reward.working import working
from services.actor.observation import observation
from services.actor.retrieval import RetrievalClient
from tests.e2e.command import REPOSITORY, overrides
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
EXAMPLES = REPOSITORY / "examples"
SMALL = {
    "run": {"root": ".", "steps": 2},
    "eval": {"limit": 8, "samples": 1},
    "replay": {"port": 0, "select": 2},
    "learner": {"batch": 4, "checkpoint_every": 2},
    "actor": {"engine": "torch"},
}


@pytest.fixture(scope="module")
def calculator() -> Iterator[str]:
    """The address of the example's server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, EXAMPLES / "calculator" / "server.py", "--port", str(port)])
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"{url}/health")
            break
        except httpx.HTTPError:
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
    yield url
    server.terminate()
    server.wait(10)


def test_the_example_of_a_reward_scores_every_rollout_of_a_run(start: Start, folder):
    command = start("up", str(EXAMPLES / "own-reward.toml"), *overrides(**SMALL))
    assert command.wait(500) == 0, command.said
    command.assert_gone(10)
    steps = read_records(folder / "own-reward" / "metrics.jsonl")
    assert [step["unscored"] for step in steps] == [0, 0]
    rollouts = [r for r in read_records(folder / "own-reward" / "events.jsonl") if r["kind"] == "rollout"]
    assert rollouts
    for r in rollouts:
        wrote = r["text"].partition("[policy] ")[2]
        expected = working(wrote, r["ground_truth"])
        assert (r["reward"], r["correct"]) == (pytest.approx(expected["reward"]), expected["correct"])


async def test_a_calculator_answers_through_the_retriever_s_client(calculator: str):
    retriever = RetrievalClient(calculator, topk=3, timeout_s=10, retries=0)
    async with retriever:
        assert await retriever.index() == "calculator-1"
        (found,) = await retriever.search("12 * (3 + 4)")
        ids = observation([found], lambda text: list(text.encode()), 500)
    assert ids is not None
    assert bytes(ids).decode() == "\n\n<information>Doc 1(Title: 12 * (3 + 4)) 84\n</information>\n\n"


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 / 3", "0.3333333333"), ("-(2 - 5.5)", "3.5"), ("2 ** 9 ** 9", "no value"), ("1 / 0", "no value")]
    + [(text, "no value") for text in ("", "two", "__import__('os')", "(" * 3000, "[1] * 9", "'a' * 9", "True + 1.5j")],
)
def test_what_is_no_arithmetic_has_no_value(expression: str, value: str):
    assert answer(expression) == value
    assert len(answer("*".join(["999999999999999"] * 120))) < 2000


def test_a_run_trains_against_the_calculator(start: Start, folder, calculator: str):
    settings = SMALL | {"env": {"url": calculator}, "search": {"corpus": ""}, "replay": {"port": 0, "policy": "none"}}
    command = start("up", str(EXAMPLES / "atlas.toml"), *overrides(**settings))
    assert command.wait(500) == 0, command.said
    steps = read_records(folder / "atlas" / "metrics.jsonl")
    assert len(steps) == 2 and all(step["searches_mean"] > 0 for step in steps)
    summary = json.loads((folder / "atlas" / "summary.json").read_text())
    assert summary["groups_lost"] == 0
