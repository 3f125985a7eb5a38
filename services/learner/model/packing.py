"""Rows one after another in a single sequence, without a token of padding.

    tokens      a0 a1 a2 b0 b1 c0 c1 c2        positions   0 1 2 0 1 0 1 2        lengths   3 2 3

Everything in a layer but the attention looks at one token at a time; the attention is told where each row begins. It
is registered with transformers under `PACKED` and takes the lengths beside the tokens; without them it is plain causal
attention. On a GPU in bf16 it is flash attention with variable lengths; elsewhere each run of rows of the same length
is one call, which is cheap because micro-batches are sorted by length. Rows that share a prompt may come before the
others, in blocks (`prefixes.py`).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from services.learner.groups.group import Row
from services.learner.model.prefixes import Block, attend, block, families

PACKED = "headrace_packed"


def pack(rows: Sequence[Row], device: torch.device, *, share: bool) -> tuple[Tensor, NDArray[np.int64], dict[str, Any]]:
    """What a transformers model reads, int64[1, N], and what it is given beside that.

    Also where in it each row would begin, int64[rows], so that its token at p is at the row's beginning + p, for all
    tokens from the last one before the first that is trained. `share`: rows may share their prompts.
    """
    shared = families(rows) if share else {}
    pieces: list[tuple[int, int, int]] = []  # (row, from, to); a row's own comes after the prompt it may stand for
    for length, members in shared.items():
        pieces += [(family[0], 0, length) for family in members]
        pieces += [(i, length, rows[i].inputs) for family in members for i in family]
    sharing = {i for members in shared.values() for family in members for i in family}
    alone = [i for i in range(len(rows)) if i not in sharing]
    pieces += [(i, 0, rows[i].inputs) for i in alone]
    starts = np.zeros(len(rows), np.int64)
    at = 0
    for i, first, end in pieces:
        starts[i] = at - first
        at += end - first
    inputs = np.concatenate([rows[i].tokens[first:end] for i, first, end in pieces])
    positions = np.concatenate([np.arange(first, end) for _, first, end in pieces])
    beside = {
        "position_ids": torch.from_numpy(positions)[None].to(device),
        "row_lengths": [rows[i].inputs for i in alone],
        "blocks": [block(rows, length, members, device) for length, members in shared.items()],
    }
    return torch.from_numpy(inputs)[None], starts, beside


def can_pack(config: Any) -> bool:
    """Whether every layer is plain causal attention, which is what `attention` computes."""
    text = config.get_text_config()
    if kinds := getattr(text, "layer_types", None):
        return set(kinds) == {"full_attention"}
    return not getattr(text, "sliding_window", None)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    row_lengths: Sequence[int] | None = None,
    scaling: float | None = None,
    blocks: Sequence[Block] = (),
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row, to [1, N, heads, d].

    query: [1, heads, N, d]; key and value: the same, or with fewer heads that several query heads share.
    """
    if blocks:
        sizes = [b.tokens for b in blocks]
        sizes.append(query.shape[2] - sum(sizes))
        parts = list(zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True))
        out = [attend(module, q[0], k[0], v[0], b, scaling) for (q, k, v), b in zip(parts, blocks, strict=False)]
        if row_lengths:
            q, k, v = parts[-1]
            out.append(attention(module, q, k, v, attention_mask, row_lengths, scaling)[0][0])
        return torch.cat(out)[None], None
    if row_lengths is None or len(row_lengths) == 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _flash(query, key, value, row_lengths, scaling), None
    runs = [(n, len(list(same))) for n, same in groupby(row_lengths)]
    sizes = [n * count for n, count in runs]
    out = []
    for q, k, v, run in zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), runs, strict=True):
        part, _ = sdpa_attention_forward(module, _rows(q, *run), _rows(k, *run), _rows(v, *run), None, scaling=scaling)
        out.append(part.flatten(0, 1))
    return torch.cat(out)[None], None


def _rows(states: Tensor, length: int, count: int) -> Tensor:
    """[1, heads, count * length, d] -> [count, heads, length, d]"""
    return states[0].unflatten(1, (count, length)).transpose(0, 1)


def _flash(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scaling: float | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(query.device)
    longest = max(lengths)
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in (query, key, value))
    causal, grouped = (-1, 0), q.shape[1] != k.shape[1]
    out = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=causal, enable_gqa=grouped)
    assert isinstance(out, Tensor)
    return out[None]


AttentionInterface.register(PACKED, attention)
