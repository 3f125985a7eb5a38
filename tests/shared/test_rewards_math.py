"""Mathematical equality: plain numbers at once, expressions through math-verify, slow ones within their time."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from shared.rewards import score
from shared.rewards.equality import equal, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", "42"),
        ("-1,234,567.5", "-1234567.5"),
        ("$18", "18"),
        ("18.", "18"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("1,23", None),
        ("(1,2)", None),
        ("", None),
        (".", None),
        ("$", None),
        ("e3", None),
        ("1/2", None),
        ("٤٢", "42"),
    ],
)
def test_plain_numbers_are_read(text: str, value: str | None):
    assert number(text) == (None if value is None else Decimal(value))


def test_whole_numbers_need_no_worker():
    script = (
        "import sys; from shared.rewards import score; "
        "assert score('math', r'\\boxed{1,234}', 'so\\n#### 1234').reward == 1.0; "
        "assert score('math', r'#### 5', '4').reward == 0.0; "
        "assert not {'sympy', 'math_verify', 'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ)


math_verify = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("math_verify") is None, reason="math-verify is not installed"
)


@math_verify
@pytest.mark.parametrize(
    ("answer", "target", "same"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\dfrac12", "1/2", True),
        (r"-\frac{3}{4}", "-0.75", True),
        ("x = 5", "5", True),
        (r"10\text{ cm}", "10", True),
        (r"90^\circ", "90", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("(1,2)", "(1, 2)", True),
        ("[0,1)", "[0,1]", False),
        (r"(-\infty, 3]", r"(-\infty,3]", True),
        (r"\{2,1\}", r"\{1,2\}", True),
        (r"\{1,2,3\}", r"\{1,2\}", False),
        (r"\text{Tuesday}", "Tuesday", True),
        (r"\frac{1}{", "1", False),
        (r"\left( \frac{", "1", False),
        ("", "1", False),
        ("2.5", "3", False),
    ],
)
def test_expressions_are_compared_by_value(answer: str, target: str, same: bool):
    assert equal(answer, target, timeout_s=20) is same


@math_verify
def test_a_slow_expression_costs_its_time_limit_and_no_more():
    equal("1/3", "2/6", timeout_s=20)  # the worker is up
    started = time.monotonic()
    scored = score("math", r"\boxed{9^{9^{9^{9}}}}", "7", math_timeout_s=0.5)
    assert time.monotonic() - started < 3
    assert (scored.reward, scored.correct) == (0.0, False)
    assert equal("1/3", "2/6", timeout_s=20), "the next comparison has a new worker"


@math_verify
def test_threads_take_turns():
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: equal(f"{i}/7", f"{2 * i}/14", timeout_s=20), range(1, 40)))
        wrong = list(pool.map(lambda i: equal(f"{i}/7", f"{2 * i + 1}/14", timeout_s=20), range(1, 20)))
    assert all(found)
    assert not any(wrong)


@math_verify
def test_the_published_answers_of_real_sets_are_right(shared_data: Path):
    for name in ("aime24.test", "amc23.test"):
        for line in (shared_data / "math" / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            assert score("math", f"So it is $\\boxed{{{row['answer']}}}$.", row["answer"]).reward == 1.0
    for line in (shared_data / "math" / "gsm8k.test.jsonl").read_text().splitlines()[:200]:
        solution = json.loads(line)["answer"]
        assert score("math", solution, solution).reward == 1.0
        assert score("math", solution + "1", solution).reward == 0.0
