"""Logits as learner and torch engine make them: in float32, whatever type the model computes in.

That the two round alike is what keeps the engine gap small (docs/method.md, section 5). torch is imported by what needs
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def float32_logits(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """states [n, H], weight [V, H], bias [V] -> float32[n, V], a tensor of its own."""
    import torch

    if states.is_cuda and weight.dtype in (torch.bfloat16, torch.float16):
        logits = torch.mm(states, weight.T, out_dtype=torch.float32)  # without a float32 copy of the weight
        return logits if bias is None else logits.add_(bias)
    return torch.nn.functional.linear(states.float(), weight.float(), None if bias is None else bias.float())
