"""The problems: sums and differences of two three-digit numbers whose result has three digits too, drawn from a seed.

    python -m examples.arith.problems examples/arith/data

Writes train.jsonl and heldout.jsonl; no pair of numbers is in both. Roughly half of all columns need a carry or a
borrow, which is what the policy has to learn to mind.
"""

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

SEED, TRAIN, HELD_OUT = 0, 2000, 400
SMALLEST, LARGEST = 100, 999  # of the numbers and of the result


@dataclass(frozen=True)
class Problem:
    """left + right or left - right."""

    left: int
    right: int
    minus: bool

    @property
    def question(self) -> str:
        """As it is asked."""
        return f"What is {self.left} {'-' if self.minus else '+'} {self.right}?"

    @property
    def answer(self) -> int:
        """The right one."""
        return self.left - self.right if self.minus else self.left + self.right


def draw(rng: random.Random) -> Problem:
    """One problem, uniform over those of its kind."""
    minus = rng.random() < 0.5
    while True:
        problem = Problem(rng.randint(SMALLEST, LARGEST), rng.randint(SMALLEST, LARGEST), minus)
        if SMALLEST <= problem.answer <= LARGEST:
            return problem


def render(seed: int = SEED) -> dict[str, str]:
    """File name -> content: TRAIN and HELD_OUT different problems."""
    rng = random.Random(seed)
    drawn: dict[Problem, None] = {}
    while len(drawn) < TRAIN + HELD_OUT:
        drawn[draw(rng)] = None
    problems = list(drawn)
    return {
        f"{name}.jsonl": "".join(_line(name, number, problem) for number, problem in enumerate(part))
        for name, part in (("train", problems[:TRAIN]), ("heldout", problems[TRAIN:]))
    }


def _line(name: str, number: int, problem: Problem) -> str:
    source = "arith-difference" if problem.minus else "arith-sum"
    row = {"id": f"{name}-{number}", "data_source": source}
    return json.dumps(row | {"question": problem.question, "answer": str(problem.answer)}) + "\n"


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write into")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, content in render(args.seed).items():
        (args.out / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
