"""Attention over the slot cache without copying it: grouped queries share their keys as they lie in the buffer.

The usual way repeats keys and values once per query head of a group; on a small model that copy costs more than the
model. Registered with transformers under NAME.

The plain products of a decoding step are the fastest in float32, and round scores and their softmax to the type of the
cache. In bfloat16 the fused kernel, which keeps both in float32 as in a full forward, is taken for them too.
"""

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "headrace_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, Hq, Q, D], key and value [B, Hkv, T, D], mask bool [B, 1, Q, T]; returns [B, Q, Hq, D]."""
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling, **kwargs)  # type: ignore[return-value]
    batch, heads, new, size = query.shape
    shared = heads // key.shape[1]
    grouped = query.reshape(batch, key.shape[1], shared * new, size)
    if new == 1 and query.dtype == torch.float32:
        scores = torch.matmul(grouped, key.transpose(2, 3)) * (scaling or size**-0.5)
        weights = scores.masked_fill_(~attention_mask, -torch.inf).softmax(-1)
        out = torch.matmul(weights, value)
    else:
        mask = attention_mask.repeat(1, 1, shared, 1)
        out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, mask, scale=scaling)
    return out.view(batch, heads, new, size).transpose(1, 2), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
