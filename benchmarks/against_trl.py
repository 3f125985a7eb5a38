"""Single-turn GRPO, samples and tokens per second, against TRL's GRPOTrainer on the same model, prompts and lengths.

TRL is no part of this product. Give it an environment of its own, and say where that is:

    python3 -m venv /tmp/trl
    /tmp/trl/bin/pip install torch==2.13.0 trl==1.13.0 transformers==5.18.0 datasets requests
    python -m benchmarks.against_trl --trl /tmp/trl/bin/python

On a CPU torch==2.13.0+cpu is the build to take where pip finds it. The policy and the problems are those of
examples/arith.toml, with plain GRPO: b prompts, G answers, one optimiser step a step, float32, no KL, the reward one
string comparison here (TRL) or math-verify (ours). Both use two cores: ours an actor and a learner of one thread each,
with a step of lag; TRL one process, with one thread and with two, generating with transformers and with its continuous
batching. The first repetition tries all three and is held against the fastest of them, which the later ones run alone.
Its vLLM modes need CUDA. Start-up and the first steps are left out on both sides.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure, run_alone, say
from benchmarks.running import EXAMPLES, WARM_UP, seconds_and_tokens, steps_of
from services.actor.text import SYSTEM

PEER = Path(__file__).with_name("trl_peer.py")
PROMPT, TURN_TOKENS, LR = "qwen_math", 48, 3e-4


def measure(
    *, trl: str = "", batch: int = 16, group_size: int = 8, steps: int = 12, repetitions: int = 3
) -> list[Figure]:
    """Nothing where no Python with TRL is named."""
    if not trl:
        say("no --size trl=PYTHON: the docstring of benchmarks/against_trl.py says how TRL is set up; left out.")
        return []
    asked = {"batch": batch, "group_size": group_size, "steps": steps + WARM_UP, "max_turn_tokens": TURN_TOKENS,
             "lr": LR, "model": str(EXAMPLES / "arith" / "policy"), "prompts": list(prompts())}  # fmt: skip
    ways = [
        {"threads": threads, "continuous_batching": paged} for threads, paged in ((1, False), (2, False), (2, True))
    ]
    fastest: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    samples = batch * group_size
    for i in range(repetitions):
        tried = []
        for way in ways:
            tried.append((rates_of_trl(trl, asked | way, samples), way))
            say(f"TRL {way}: {tried[-1][0][0]:.0f} samples/s, {tried[-1][0][1]:.0f} tokens/s")
        best, way = max(tried, key=lambda one: one[0])
        ways = [way]  # the fastest of the first repetition
        fastest.append(best)
        seconds, tokens = seconds_and_tokens(steps_of(
            "arith", steps, learner__batch=batch, rollout__group_size=group_size, replay__policy="none",
            learner__reference="engine", actor__threads=1, learner__threads=1, learner__warmup_steps=0,
        ))  # fmt: skip
        ours.append((steps * samples / seconds, tokens / seconds))
        say(f"repetition {i + 1}: ours {ours[-1][0]:.0f} samples/s, {ours[-1][1]:.0f} tokens/s")
    note = f"TRL at its fastest here: {ways[0]}"
    return [
        Figure(name=f"against TRL: {unit}", unit=f"{unit}/s", ours=[o[k] for o in ours], peer=[t[k] for t in fastest],
               against="GRPOTrainer", at_least=1.3, note=note)
        for k, unit in enumerate(("samples", "tokens"))
    ]  # fmt: skip


def prompts() -> Iterator[dict[str, Any]]:
    """The training problems as an actor puts them."""
    for text in (EXAMPLES / "arith" / "data" / "train.jsonl").read_text().splitlines():
        row = json.loads(text)
        said = [{"role": "system", "content": SYSTEM[PROMPT]}, {"role": "user", "content": row["question"]}]
        yield {"prompt": said, "answer": row["answer"]}


def rates_of_trl(python: str, asked: dict[str, Any], samples: int) -> tuple[float, float]:
    """(samples/s, tokens/s) behind the warm-up. Raises RuntimeError with the end of what it said."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(asked["threads"])}
    command = [python, str(PEER)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"TRL ended with status {done.returncode}: {done.stderr[-2000:]}")
    steps = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")][WARM_UP:]
    rate = samples / statistics.mean(step["seconds"] for step in steps)
    return rate, rate * statistics.mean(step["mean_length"] for step in steps)


if __name__ == "__main__":
    run_alone(measure)
