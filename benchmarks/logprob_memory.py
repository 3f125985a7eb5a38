"""Peak memory of log p over a large vocabulary, forward and backward: in chunks, as the learner does it, and naively.

    .venv/bin/python -m benchmarks.logprob_memory [--tokens 8192] [--vocabulary 151936] [--hidden 64]

Each form runs in a process of its own, on the CPU in float32, and reports how far its resident memory rose above what
it held before: model head, hidden states and their gradients are counted apart, since both forms need them.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor

from services.learner.model import logprob


def naive(head: torch.nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    """The usual line."""
    return torch.log_softmax(head(states).float(), -1).gather(-1, targets[:, None]).squeeze(-1)


def chunked(head: torch.nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    """The learner's."""
    return logprob.token_logprobs(head, states, targets, 1.0)


FORMS = {"naive": naive, "chunked": chunked}


def measure(form: str, tokens: int, vocabulary: int, hidden: int) -> None:
    """Print 'peak bytes above the start, seconds of processor time, a sum of the gradient'."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = torch.nn.Linear(hidden, vocabulary, bias=False)
    states = torch.randn(tokens, hidden, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,))
    head.weight.grad, states.grad = torch.zeros_like(head.weight), torch.zeros_like(states)
    before, began = _peak(), time.process_time()
    FORMS[form](head, states, targets).sum().backward()
    print(_peak() - before, time.process_time() - began, states.grad.double().abs().sum().item())


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = (args.tokens, args.vocabulary, args.hidden)
    if args.form:
        measure(args.form, *sizes)
        return
    copy = 4 * args.tokens * args.vocabulary / 2**30
    print(f"[{args.tokens} x {args.vocabulary}]: one copy in float32 is {copy:.2f} GiB")
    for form in FORMS:
        flags = [f"--{name}={n}" for name, n in zip(("tokens", "vocabulary", "hidden"), sizes, strict=True)]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.logprob_memory", *flags, f"--form={form}"],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(f"{form:8} did not finish (status {done.returncode}): {done.stderr.strip().splitlines()[-1:]}")
            continue
        peak, seconds, total = map(float, done.stdout.split())
        print(f"{form:8} peak {peak / 2**30:6.2f} GiB   {seconds:5.1f} s of processor time   |gradient| {total:.4f}")


if __name__ == "__main__":
    main()
