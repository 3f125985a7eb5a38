"""A process behind `shared.rewards.equality_pool`: a JSON line {"answer", "target", "timeout_s"} in, {"equal"} out."""

import json
import logging
import re
import resource
import sys
from typing import Any

from shared.workers import allow_seconds

MEMORY_BYTES = 4 * 2**30
IMPORT_S = 60.0
BRACED = re.compile(r"(\\left\s*)?(\\?\{|\\lbrace\b).*(\\?\}|\\rbrace)", re.DOTALL)


def main() -> None:
    """Answer until the input ends."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        question = json.loads(line)
        allow_seconds(question.get("timeout_s", IMPORT_S))
        same = "answer" in question and equal(question["answer"], question["target"])
        print(json.dumps({"equal": same}), flush=True)


def equal(answer: str, target: str) -> bool:
    """Compare as math-verify does, without a time limit: the caller keeps it."""
    from math_verify import parse, verify

    # Boxed, because that is the form in which any LaTeX, text or plain number is taken as the answer.
    wanted = parse(f"\\boxed{{{target}}}", parsing_timeout=0)
    given = parse(f"\\boxed{{{answer}}}", parsing_timeout=0)
    if not wanted or not given or not verify(wanted, given, timeout_seconds=0):
        return False
    kinds = {_kind(target, wanted[0]), _kind(answer, given[0])}
    return kinds != {"set", "pair"} and _agree(wanted[0], given[0])


def _kind(text: str, value: Any) -> str:
    """math-verify takes {1, 2} for (1, 2): a set that is written as one is no pair and no interval.

    Numbers without brackets ("1, 2") are a set to it too, and may still stand for either.
    """
    from sympy import FiniteSet, Interval, Tuple

    if isinstance(value, FiniteSet) and BRACED.fullmatch(text.strip()):
        return "set"
    return "pair" if isinstance(value, Interval | Tuple) else ""


def _agree(wanted: Any, given: Any) -> bool:
    """math-verify rounds to six decimals, which makes all tiny numbers equal: those must agree to three digits too."""
    if not (getattr(wanted, "is_number", False) and getattr(given, "is_number", False)):
        return True
    size = abs(wanted.evalf())
    return not 0 < size < 1e-3 or bool(abs(given.evalf() - wanted.evalf()) <= 5e-4 * size)


if __name__ == "__main__":
    # The first line a caller sends is empty: by the answer to it the slow import is over.
    import math_verify  # noqa: F401

    main()
