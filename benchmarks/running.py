"""A whole run of this product as a user starts it, for benchmarks that need its step times and nothing else."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.leaving import leaves_by_itself

EXAMPLES = Path(__file__).parents[1] / "examples"
WARM_UP = 3  # steps that are left out


def steps_of(example: str, steps: int, **settings: Any) -> list[dict[str, Any]]:
    """The records of `steps` steps of `headrace up` on an example, behind the warm-up, without evaluation.

    settings: dotted keys with `__` for the dot. Raises RuntimeError with the end of the log where the run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = {"run__root": folder, "run__name": "bench", "run__steps": steps + WARM_UP + 2, "data__eval": '""',
                 "replay__port": 0, "search__port": 0, "learner__checkpoint_every": 1000} | settings  # fmt: skip
        flags = [word for key, value in given.items() for word in (f"--{key.replace('__', '.')}", str(value))]
        command = [sys.executable, "-m", "cli.main", "up", str(EXAMPLES / f"{example}.toml"), *flags]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with leaves_by_itself(run):
            said = "".join(run.communicate())
        lines = Path(folder, "bench", "metrics.jsonl")
        if run.returncode or not lines.exists():
            raise RuntimeError(f"the run ended with status {run.returncode}: {said[-2000:]}")
        records = [json.loads(line) for line in lines.read_text().splitlines()]
    return records[WARM_UP : WARM_UP + steps]


def seconds_and_tokens(records: list[dict[str, Any]]) -> tuple[float, int]:
    """Over these steps: their seconds, and the tokens of their fresh groups that the policy sampled."""
    return sum(r["seconds"] for r in records), sum(r["tokens_sampled"] for r in records)
