"""log p of sampled tokens without the logits of all of them: made chunk by chunk, and again in the backward pass.

With l_t = s_t W^T / temperature the last layer's logits and p_t their softmax,

    log p_t(y) = l_t[y] - logsumexp(l_t)        d log p_t(y) / d l_t = onehot(y) - p_t

so what is kept for the backward pass is one number per token, logsumexp(l_t), beside s_t and W.

Logits are float32 whatever the model computes in. Rounded to bfloat16 a logit of 20 is off by .06, and half of what two
scorings of the same tokens differ by would come from there: 2.7e-3 in the mean of d^2, and 1.4e-3 without, with
SmolLM2-135M in two cuts. (MiniMax-M1, arXiv 2506.13585, and ScaleRL, 2510.13786, found the same between engine and
trainer.) The last norm in float32 too gave 1.3e-3 and would double the product, so it stays in the model's type.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shared.logits import float32_logits

LOGITS_AT_ONCE = 2**25  # tokens x vocabulary in one chunk: 128 MiB in float32
_HALVES = (torch.bfloat16, torch.float16)


def token_logprobs(head: Any, states: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """log softmax(head(states) / temperature) at the targets, computed in float32: float32[T].

    head: a linear layer d -> V; states: [T, d]; targets: int64[T]. At most one chunk of logits exists at a time.
    """
    chunk = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(targets) <= chunk and head.weight.dtype not in _HALVES:
        return _score(_logits(states, head.weight, head.bias, temperature), targets)[0]
    out = _Chunked.apply(states, head.weight, head.bias, targets, temperature, chunk)
    assert isinstance(out, Tensor)
    return out


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, chunk: int
    ) -> Tensor:
        logp, normaliser = states.new_empty(2, len(targets), dtype=torch.float32)
        for at in range(0, len(targets), chunk):
            part = slice(at, at + chunk)
            logp[part], normaliser[part] = _score(_logits(states[part], weight, bias, temperature), targets[part])
        ctx.save_for_backward(states, weight, bias, targets, normaliser)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = grad_outputs
        states, weight, bias, targets, normaliser = ctx.saved_tensors
        for_states, for_weight, for_bias = ctx.needs_input_grad[:3]
        d_states = torch.empty_like(states) if for_states else None
        summed = torch.promote_types(weight.dtype, torch.float32)  # dozens of chunks added up in bfloat16 lose two bits
        d_weight = torch.zeros_like(weight, dtype=summed) if for_weight else None
        d_bias = torch.zeros_like(bias, dtype=summed) if for_bias else None
        for at in range(0, len(targets), ctx.chunk):
            part = slice(at, at + ctx.chunk)
            d = _logits(states[part], weight, bias, ctx.temperature)
            d.sub_(normaliser[part, None]).exp_().neg_()
            d[torch.arange(len(d), device=d.device), targets[part]] += 1.0
            d = d.mul_(grad[part, None] / ctx.temperature).to(weight.dtype)
            if d_states is not None:
                torch.mm(d, weight, out=d_states[part])
            if d_weight is not None:
                if d_weight.dtype == d.dtype:
                    d_weight.addmm_(d.T, states[part])
                else:
                    d_weight += d.T @ states[part]
            if d_bias is not None:
                d_bias += d.sum(0)
        return d_states, _cast(d_weight, weight), _cast(d_bias, bias), None, None, None


def _cast(gradient: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if gradient is None or like is None else gradient.to(like.dtype)


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    return float32_logits(states, weight, bias).div_(temperature)


def _score(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    normaliser = torch.logsumexp(logits, -1)
    return logits.gather(-1, targets[:, None]).squeeze(-1) - normaliser, normaliser
