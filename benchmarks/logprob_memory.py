"""Peak memory of log p over a large vocabulary, forward and backward: in chunks, as the learner does it, and naively.

    python -m benchmarks.logprob_memory [--tokens 8192] [--vocabulary 151936] [--hidden 64]

Each form runs in a process of its own, on the CPU in float32, and reports how far its resident memory rose above what
it held before: model head, hidden states and their gradients are counted apart, since both forms need them.
"""

import time
from concurrent.futures.process import BrokenProcessPool

import torch
from torch import Tensor

from benchmarks.apart import apart, peak_bytes
from benchmarks.figure import Figure, run_alone, say
from services.learner.model import logprob


def naive(head: torch.nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    """The usual line."""
    return torch.log_softmax(head(states).float(), -1).gather(-1, targets[:, None]).squeeze(-1)


def chunked(head: torch.nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    """The learner's."""
    return logprob.token_logprobs(head, states, targets, 1.0)


FORMS = {"chunked": chunked, "naive": naive}


def peak(form: str, tokens: int, vocabulary: int, hidden: int) -> tuple[int, float, float]:
    """Peak bytes above the start, seconds of processor time, a sum of the gradient."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = torch.nn.Linear(hidden, vocabulary, bias=False)
    states = torch.randn(tokens, hidden, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,))
    head.weight.grad, states.grad = torch.zeros_like(head.weight), torch.zeros_like(states)
    before, began = peak_bytes(), time.process_time()
    FORMS[form](head, states, targets).sum().backward()
    return peak_bytes() - before, time.process_time() - began, states.grad.double().abs().sum().item()


def measure(*, tokens: int = 8192, vocabulary: int = 151936, hidden: int = 64) -> list[Figure]:
    """Both forms once: memory does not vary."""
    taken: dict[str, tuple[int, float, float]] = {}
    for form in FORMS:
        say(form)
        try:
            taken[form] = apart(peak, form, tokens, vocabulary, hidden)
        except BrokenProcessPool:
            say(f"{form} was killed: this machine has not the memory")
    ours, copy = taken["chunked"], 4 * tokens * vocabulary / 2**30
    if "naive" not in taken:
        return [Figure(name="log p, peak memory", unit="GiB", ours=[ours[0] / 2**30], judged="ours",
                       note=f"the naive form did not fit: one copy of the logits is {copy:.2f} GiB")]  # fmt: skip
    peer = taken["naive"]
    assert abs(ours[2] - peer[2]) <= 1e-3 * peer[2], f"gradients differ: {ours[2]} and {peer[2]}"
    note = f"[{tokens} x {vocabulary}], one copy of the logits is {copy:.2f} GiB; {ours[1]:.1f} s and {peer[1]:.1f} s"
    return [Figure(name="log p, peak memory", unit="GiB", ours=[ours[0] / 2**30], peer=[peer[0] / 2**30],
                   against="log_softmax of all logits at once", note=note)]  # fmt: skip


if __name__ == "__main__":
    run_alone(measure)
