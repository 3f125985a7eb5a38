"""log p in chunks is log p: values, every gradient, and the memory it takes."""

from typing import Any

import pytest
import torch

from services.learner.model import logprob


def naive(head: Any, states: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = head(states).double() / temperature
    return torch.log_softmax(logits, -1).gather(-1, targets[:, None]).squeeze(-1)


def problem(dtype: torch.dtype, bias: bool) -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 211, bias=bias, dtype=dtype)
    states = torch.randn(37, 16, dtype=dtype, requires_grad=True)
    return head, states, torch.randint(211, (37,)), torch.randn(37)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 36, 37])
def test_values_and_gradients_are_exact(chunk: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", 211 * chunk)
    head, states, targets, upstream = problem(torch.float32, bias)
    leaves = [states, *head.parameters()]
    ours = logprob.token_logprobs(head, states, targets, 0.7)
    reference = naive(head, states, targets, 0.7)
    torch.testing.assert_close(ours.double(), reference, atol=2e-6, rtol=1e-6)
    expected = torch.autograd.grad((reference * upstream).sum(), leaves)
    for a, b in zip(torch.autograd.grad((ours * upstream).sum(), leaves), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_in_bfloat16_the_softmax_is_taken_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    head, states, targets, upstream = problem(torch.bfloat16, False)
    results = []
    for at_once in (2**25, 211 * 5):
        monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", at_once)
        logp = logprob.token_logprobs(head, states, targets, 1.0)
        assert logp.dtype == torch.float32
        results.append((logp, *torch.autograd.grad((logp * upstream).sum(), [states, head.weight])))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    for a, b in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(a, b, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("bias", [False, True])
def test_logits_of_a_bfloat16_head_are_not_rounded_to_it(bias: bool) -> None:
    head, states, targets, _ = problem(torch.bfloat16, bias)
    states = (20 * states).detach()
    ours = logprob.token_logprobs(head, states, targets, 0.7)
    exact = torch.nn.Linear(16, 211, bias=bias, dtype=torch.float64)
    exact.load_state_dict(head.state_dict())
    torch.testing.assert_close(ours.double(), naive(exact, states.double(), targets, 0.7), atol=1e-4, rtol=1e-5)


def test_many_chunks_in_bfloat16_lose_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 211, bias=False, dtype=torch.bfloat16)
    states, targets, upstream = torch.randn(600, 16, dtype=torch.bfloat16), torch.randint(211, (600,)), torch.randn(600)

    def error(head: torch.nn.Linear, chunk: int) -> float:
        monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", 211 * chunk)
        logp = logprob.token_logprobs(head, states.to(head.weight.dtype), targets, 1.0)
        (gradient,) = torch.autograd.grad((logp * upstream).sum(), head.weight)
        return float((gradient.double() - exact).norm() / exact.norm())

    exact = torch.zeros(211, 16, dtype=torch.float64)
    whole = torch.nn.Linear(16, 211, bias=False, dtype=torch.float64)
    whole.load_state_dict(head.state_dict())
    logp = naive(whole, states.double(), targets, 1.0)
    exact = torch.autograd.grad((logp * upstream).sum(), whole.weight)[0]
    assert error(head, 4) < 1.5 * error(head, 599)  # added up in bfloat16 it is several times as much


def test_a_tied_weight_gets_the_gradient_of_both_its_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    head, _, targets, upstream = problem(torch.float32, False)
    gradients = []
    for at_once in (2**25, 211 * 4):
        monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", at_once)
        states = torch.nn.functional.embedding(targets.roll(1), head.weight)
        logp = logprob.token_logprobs(head, states, targets, 1.0)
        gradients.append(torch.autograd.grad((logp * upstream).sum(), head.weight)[0])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", 211 * 4)
    head, states, targets, _ = problem(torch.float32, False)
    head.requires_grad_(False)
    logprob.token_logprobs(head, states, targets, 1.0).sum().backward()
    assert head.weight.grad is None
    assert states.grad is not None


def test_nothing_as_large_as_all_logits_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    head, states, targets, _ = problem(torch.float32, False)
    monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", 211 * 17)
    with Watch():
        logprob.token_logprobs(head, states, targets, 1.0).sum().backward()
    assert largest == 211 * 17
