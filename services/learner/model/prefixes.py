"""Rollouts of one prompt read it once: it lies in front of what is left of each of them.

    rows      p0 p1 p2 a3 a4        of one prompt p0 .. p3, whose last token each row keeps: from there it is trained
              p0 p1 p2 b3 b4 b5
    packed    p0 p1 p2 | a3 a4 | b3 b4 b5        positions   0 1 2 | 3 4 | 3 4 5

A token sees the same tokens as in a row of its own, so log-probabilities and gradients are the same sums; a prompt's
gradient is added up over its rows on the way back. Only the attention knows: the rows of a block, whose prompts are of
one length, are padded for one call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from services.learner.groups.group import Row


@dataclass(frozen=True)
class Block:
    """`count` prompts of `length` tokens each, then what is left of R rows, of which the longest has M tokens."""

    length: int
    count: int
    reads: Tensor  # int64[R, length + M], the places in the block of what a row's tokens see, padded on the right
    real: Tensor  # int64[tokens of the rows], which of [R, M] are no padding
    mask: Tensor  # bool[M, length + M], what each of a row's tokens sees

    @property
    def tokens(self) -> int:
        """In all."""
        return self.count * self.length + len(self.real)


def families(rows: Sequence[Row]) -> dict[int, list[list[int]]]:
    """Which rows share a prompt that is worth sharing, by its length L without the last token.

    It is where attention costs at most a third more: masked it sees M (L + M) pairs in each row, of which the longest
    has M tokens left, and alone (L + m)^2 / 2 in a row of m. Rows as long as each other may be twice the prompt.
    """
    alike: dict[bytes, list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(row.tokens[: row.positions[0] - 1].tobytes(), []).append(i)
    found: dict[int, list[list[int]]] = {}
    held: dict[int, tuple[int, int, int]] = {}  # of the rows found for a length: how many, the longest, squares in all
    for members in alike.values():
        length = int(rows[members[0]].positions[0]) - 1
        count, longest, squares = held.get(length, (0, 0, 0))
        inputs = [rows[i].inputs for i in members]
        count, longest, squares = count + len(inputs), max(longest, *inputs), squares + sum(n * n for n in inputs)
        if len(members) > 1 and 3 * count * (longest - length) * longest <= 2 * squares:
            held[length] = count, longest, squares
            found.setdefault(length, []).append(members)
    return found


def block(rows: Sequence[Row], length: int, members: Sequence[Sequence[int]], device: torch.device) -> Block:
    """The block of these families, each the numbers of rows with one prompt; rows lie in it family by family."""
    rests = [rows[i].inputs - length for family in members for i in family]
    prompts = np.repeat(np.arange(len(members)), [len(family) for family in members])
    longest = max(rests)
    real = np.arange(longest) < np.array(rests)[:, None]
    reads = np.zeros((len(rests), length + longest), np.int64)
    reads[:, :length] = prompts[:, None] * length + np.arange(length)
    reads[:, length:][real] = len(members) * length + np.arange(real.sum())
    return Block(
        length=length,
        count=len(members),
        reads=torch.from_numpy(reads).to(device),
        real=torch.from_numpy(np.flatnonzero(real)).to(device),
        mask=torch.ones(longest, length + longest, dtype=torch.bool, device=device).tril(length),
    )


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, block: Block, scaling: float | None
) -> Tensor:
    """Attention within one block: query [heads, block.tokens, d], key and value alike, to [block.tokens, heads, d]."""
    first = block.count * block.length

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return sdpa_attention_forward(module, q, k, v, mask, scaling=scaling)[0].flatten(0, 1)

    def prompts(states: Tensor) -> Tensor:
        return states[:, :first].unflatten(1, (block.count, block.length)).transpose(0, 1)

    own = block.reads[:, block.length :]
    rows = call(_gather(query, own), _gather(key, block.reads), _gather(value, block.reads), block.mask)
    rows = embedding(block.real, rows.flatten(1)).unflatten(1, rows.shape[1:])
    return torch.cat([call(prompts(query), prompts(key), prompts(value), None), rows])


def _gather(states: Tensor, places: Tensor) -> Tensor:
    """[heads, N, d] at int64[R, n] -> [R, heads, n, d]. By `embedding`, whose way back is the fastest sum there is."""
    heads, _, size = states.shape
    return embedding(places, states.transpose(0, 1).flatten(1)).unflatten(2, (heads, size)).transpose(1, 2)
