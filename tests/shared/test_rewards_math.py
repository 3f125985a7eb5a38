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

from shared import workers
from shared.errors import UserError
from shared.rewards import answer_classes, equality, score
from shared.rewards.answers import last_boxed
from shared.rewards.equality import equal, number
from shared.rewards.equality_pool import POOL, NotAnswered, Pool, Verdict, Worker


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
        # fractions
        (r"\frac{\frac{1}{2}}{3}", r"\frac16", True),
        (r"1\frac{1}{2}", r"\frac{3}{2}", True),
        (r"\tfrac{2}{4}", "0.5", True),
        (r"\frac{1}{3}", "0.3", False),
        (r"\frac{a+b}{c}", r"\frac{a}{c}+\frac{b}{c}", True),
        ("50\\%", "50", True),
        # units
        (r"5\ \mathrm{m}", "5", True),
        (r"12\text{ apples}", "12", True),
        (r"\$1{,}200", "1200", True),
        (r"3.0 \times 10^{8} \mathrm{~m/s}", "3e8", True),
        (r"7\text{ cm}", "8", False),
        ("1,234.5", "1.2345e3", True),
        # intervals, tuples and sets
        ("(0,1)", "[0,1]", False),
        (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,1)", True),
        (r"[\frac12, 1)", "[0.5,1)", True),
        ("(1,2)", "(2,1)", False),
        (r"\{1,2\}", "1,2", True),
        (r"\{1,2\}", "(1,2)", False),
        (r"(1,2)", r"\left\{ 1, 2 \right\}", False),
        ("{1,2}", "(1,2)", False),
        ("1,2", "(1,2)", True),
        (r"\{\frac{1}{2},3\}", r"\{3,0.5\}", True),
        # values spelled in other ways
        (r"2^{10}", "1024", True),
        (r"\sin\frac{\pi}{2}", "1", True),
        (r"\log_2 8", "3", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", False),
        ("3+4i", "4i+3", True),
        (r"\pi", "3.14159", False),
        # malformed
        (r"\frac{", "1", False),
        (r"}}}{{{", "1", False),
        (r"\sqrt{\sqrt{\sqrt{", "1", False),
        (r"\begin{pmatrix}1", "1", False),
        (r"\left(1", "1", False),
        ("\x00\x01", "1", False),
        (r"\unknown{3}", "4", False),
        ("1" + "+1" * 3000, "3001", False),
    ],
)
def test_expressions_are_compared_by_value(answer: str, target: str, same: bool):
    assert equal(answer, target, timeout_s=20) is same


@math_verify
@pytest.mark.alone
def test_a_slow_expression_costs_its_time_limit_and_no_more():
    equal("1/3", "2/6", timeout_s=20)  # the worker is up
    started = time.monotonic()
    scored = score("math", r"\boxed{9^{9^{9^{9}}}}", "7", math_timeout_s=0.5)
    assert time.monotonic() - started < 3
    assert (scored.reward, scored.correct, scored.parts["given_up"]) == (0.0, False, 1.0)
    assert score("math", r"\boxed{1/5}", "7", math_timeout_s=20).parts["given_up"] == 0.0
    assert equal("1/3", "2/6", timeout_s=20), "the next comparison has a new worker"


SLOW = [
    r"9^{9^{9^{9}}}",
    r"\binom{10^{9}}{5\cdot 10^{8}}",
    "(" * 40 + "x+1" + ")^{9}" * 40,
    r"\int_0^1 e^{x^{x^{x}}} \sin(x^{99}) dx",
    "+".join(rf"\sqrt{{\sqrt{{{i}}}+\sqrt{{{i + 1}}}}}" for i in range(1, 60)),
]


def warm_up() -> None:
    """Wait until both workers are up: how long starting takes is not what the tests below measure."""
    with POOL.worker(None) as one, POOL.worker(None) as two:
        assert one.ask("1/3", "2/6", 20) is Verdict.EQUAL
        assert two.ask("1/3", "2/6", 20) is Verdict.EQUAL


@math_verify
@pytest.mark.slow
@pytest.mark.parametrize("expression", SLOW)
@pytest.mark.alone
def test_the_time_limit_holds_whatever_is_written(expression: str):
    warm_up()
    started = time.monotonic()
    assert equal(expression, r"7\sqrt{11}", timeout_s=0.5) is False
    assert time.monotonic() - started < 2.5


@math_verify
@pytest.mark.alone
def test_the_same_slow_answer_is_paid_for_once():
    assert score("math", r"\boxed{8^{8^{8^{8}}}}", "7", math_timeout_s=0.5).correct is False
    started = time.monotonic()
    for _ in range(16):
        assert score("math", r"\boxed{8^{8^{8^{8}}}}", "7", math_timeout_s=5).correct is False
    assert time.monotonic() - started < 0.1


@pytest.mark.slow
@math_verify
def test_a_quick_answer_is_not_held_up_by_a_slow_one():
    warm_up()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(equal, r"7^{7^{7^{7^{7}}}}", "7", 3.0)
        time.sleep(0.2)
        assert equal("5/3", "10/6", timeout_s=20)
        assert not slow.done()
    assert slow.result() is False


@pytest.mark.slow
@math_verify
def test_who_waits_for_others_until_the_deadline_is_unscored_not_wrong():
    warm_up()
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(equal, rf"6^{{6^{{6^{{6^{{{i}}}}}}}}}", "7", 1.5) for i in (6, 7)]
        time.sleep(0.3)
        waited = score("math", r"\boxed{11/3}", r"\frac{22}{6}", deadline=time.monotonic() + 0.2)
        plain = score("math", r"\boxed{11}", "11", deadline=time.monotonic())
    assert (waited.reward, waited.correct) == (None, False)
    assert plain.reward == 1.0, "numbers need no worker"
    assert [b.result() for b in busy] == [False, False]


@math_verify
@pytest.mark.alone
def test_a_worker_that_starts_slowly_leaves_the_answer_unscored_and_goes_on_starting():
    worker = Worker()
    try:
        started = time.monotonic()
        with pytest.raises(NotAnswered):
            worker.ask("1/3", "2/6", 20, patience_s=0.05)
        assert time.monotonic() - started < 1
        assert worker.ask("1/3", "2/6", 20) is Verdict.EQUAL
    finally:
        worker.kill()
    dead = Worker()
    try:
        dead._process.kill()
        with pytest.raises(UserError, match="does not start"):
            dead.ask("1/3", "2/6", 20)
    finally:
        dead.kill()


@math_verify
@pytest.mark.slow
def test_a_worker_whose_caller_died_ends_by_itself(tmp_path: Path):
    script = (
        "import threading, time, os; from shared.rewards.equality_pool import Worker; w = Worker();"
        "threading.Thread(target=w.ask, args=('9^{9^{9^{9}}}', '7', 0.2), daemon=True).start();"
        "[time.sleep(0.1) for _ in iter(lambda: w._ready, True)]; time.sleep(0.2);"
        "print(w._process.pid, flush=True); os._exit(0)"
    )
    pid = int(subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60))
    deadline = time.monotonic() + 120  # it has three seconds, of the processor, which on a busy machine take longer
    while _runs(pid):
        assert time.monotonic() < deadline, "the worker still computes for nobody"
        time.sleep(0.2)


def _runs(pid: int) -> bool:
    try:
        return "equality_worker" in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("text", "graded", "correct"),
    [
        (r"so \boxed{12}", 1.0, True),
        ("so\n#### 12", 0.8, True),
        (r"so \boxed{13}", 0.2, False),
        ("#### 13", 0.1, False),
        ("so 12", 0.0, False),
        (r"\boxed{12", 0.0, False),
        (r"\boxed{}", 0.0, False),
    ],
)
def test_the_format_score_pays_for_the_box_and_never_makes_an_answer_right(text: str, graded: float, correct: bool):
    scored = score("math", text, "12", format_score=True)
    assert scored.reward == pytest.approx(graded)
    assert scored.correct is correct is score("math", text, "12").correct
    assert score("math", text, "12").reward == float(correct)


@math_verify
def test_answers_are_one_class_when_they_are_equal():
    answers = ["1/2", r"\frac12", None, "0.5", "2", "", "2.0", r"\sqrt{4}"]
    assert answer_classes("math", answers) == [0, 0, None, 0, 1, None, 1, 1]


@math_verify
def test_an_answer_that_no_worker_has_started_for_is_a_class_of_its_own(monkeypatch: pytest.MonkeyPatch):
    pool = Pool(Worker, 1)
    monkeypatch.setattr(equality, "POOL", pool)
    monkeypatch.setattr(workers, "START_S", 0.0)
    try:
        assert answer_classes("math", [r"\frac{3}{19}", "6/38", r"\frac{3}{19}"]) == [0, 1, 0]
    finally:
        pool.stop()


@math_verify
def test_threads_take_turns():
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: equal(f"{i}/7", f"{2 * i}/14", timeout_s=20), range(1, 40)))
        wrong = list(pool.map(lambda i: equal(f"{i}/7", f"{2 * i + 1}/14", timeout_s=20), range(1, 20)))
    assert all(found)
    assert not any(wrong)


@math_verify
@pytest.mark.parametrize(
    ("answer", "target", "same"),
    [
        (r"1.6 \mathrm{~cm}", "1.6", True),  # Minerva's questions name the unit, its answers do not
        (r"20.8 \text{ V}", "20.8", True),
        (r"2.19 \times 10^{6}", "2.19e6", True),
        (r"2.2 \times 10^{6}", "2.19e6", False),
        (r"4.5 \times 10^{33} \mathrm{erg/s}", "4.5e33", True),
        (r"1.0 \times 10^{-8} \mathrm{~F}", "1e-8", True),
        (r"2.0 \times 10^{-8} \mathrm{~F}", "1e-8", False),
        ("2e-8", "1e-8", False),
        ("0", "1e-8", False),
        (r"1+i\sqrt{3}", r"1+\sqrt{3} i", True),
        (r"\frac{1}{3}e^{t}", "e^{t} / 3", True),
        (r"\frac{1}{s-a}", r"\frac{1}{s+a}", False),
        (r"\frac{2C}{3S}", r"\frac{2}{3} \frac{C}{S}", True),
        ("125 - 1.25P", "X_{d}=125-1.25 P", True),
        ("SRMC = MR", "MR=SRMC", True),
    ],
)
def test_answers_with_units_powers_and_symbols_as_minerva_has_them(answer: str, target: str, same: bool):
    assert score("math", f"So it is $\\boxed{{{answer}}}$.", target).correct is same


@math_verify
def test_the_published_answers_of_real_sets_are_right(shared_data: Path):
    for name in ("aime24.test", "amc23.test"):
        for line in (shared_data / "math" / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            assert score("math", f"So it is $\\boxed{{{row['answer']}}}$.", row["answer"]).reward == 1.0
    for line in (shared_data / "math" / "minerva_math.test.jsonl").read_text().splitlines():
        solution = json.loads(line)["solution"]
        target = last_boxed(solution)
        assert target and score("math", solution, target).reward == 1.0
        assert not target.isdigit() or score("math", solution, target + "1").reward == 0.0
    for line in (shared_data / "math" / "gsm8k.test.jsonl").read_text().splitlines()[:200]:
        solution = json.loads(line)["answer"]
        assert score("math", solution, solution).reward == 1.0
        assert score("math", solution + "1", solution).reward == 0.0
