"""Attention over the slot cache: a decoding step in bfloat16 is as exact as a full forward."""

from typing import Any

import pytest
import torch

from services.actor.engines.torch_attention import grouped_attention

BATCH, HEADS, SHARED, LENGTH, SIZE = 3, 2, 4, 96, 64


def inputs(dtype: torch.dtype, new: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sharp attention, as trained heads have it, over rows of different lengths."""
    torch.manual_seed(0)
    query = (3 * torch.randn(BATCH, HEADS * SHARED, new, SIZE)).to(dtype)
    key, value = (torch.randn(BATCH, HEADS, LENGTH, SIZE).to(dtype) for _ in range(2))
    ends = torch.tensor([LENGTH, LENGTH - 30, 7])[:, None] - new + torch.arange(1, new + 1)
    return query, key, value, (torch.arange(LENGTH) < ends[..., None])[:, None]


def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """In float64, a head at a time."""
    key, value = (t.double().repeat_interleave(SHARED, 1) for t in (key, value))
    scores = (query.double() @ key.transpose(2, 3) / SIZE**0.5).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-3)])
def test_scores_and_softmax_are_not_rounded_to_the_type_of_the_cache(dtype: torch.dtype, most: float, new: int) -> None:
    q, k, v, mask = inputs(dtype, new)
    module: Any = torch.nn.Module()
    out, _ = grouped_attention(module, q, k, v, mask)
    truth = exact(q, k, v, mask)
    error = (out.double() - truth).square().mean().sqrt() / truth.square().mean().sqrt()
    assert error < most
