"""A stored group as the learner holds it: its rollouts as rows for the model, its trained tokens as flat tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.messages import Malformed
from shared.payload import Payload
from shared.versions import Version


@dataclass(frozen=True)
class Row:
    """One rollout that has trained tokens.

    tokens: int64[n], the prompt and the rollout up to its last trained token (nothing after it can matter).
    positions: int64[k], the places of the trained tokens in `tokens`; all at least 1.
    start: the place of its first trained token among the flat tokens it belongs to.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    start: int

    @property
    def inputs(self) -> int:
        """Tokens the model reads: the last one is only predicted."""
        return len(self.tokens) - 1


@dataclass
class Group:
    """Flat tensors have one item per trained token, T in all, rollout after rollout, on the CPU."""

    id: str
    rows: list[Row]
    l_gen: Tensor  # float32[T]
    advantages: Tensor  # float32[T], each token has its response's
    rollout: Tensor  # int64[T], the index of its row
    version_runs: NDArray[np.int32]  # int32[k, 3], (how many, lineage, number)
    canary_tokens: NDArray[np.int32]  # the first rollout with its prompt
    numbers: list[int]  # the place of each row's rollout among the G that were sampled
    l_ref: Tensor | None = None  # float32[T]
    share: float = 1.0  # how much it counts beside the other groups of a mini-batch
    joins: str = ""  # the group whose rollouts its own are averaged with

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.l_gen)

    @property
    def bytes(self) -> int:
        """Of memory, with room for l_ref."""
        rows = sum(row.tokens.nbytes + row.positions.nbytes for row in self.rows)
        flat = sum(t.nbytes for t in (self.l_gen, self.l_gen, self.advantages, self.rollout))
        return rows + flat + self.version_runs.nbytes + self.canary_tokens.nbytes

    def sampled_under(self, version: Version) -> Tensor:
        """Where the token was sampled under exactly these weights, bool[T]."""
        counts, lineages, numbers = self.version_runs.T
        same = (lineages == version.lineage) & (numbers == version.number)
        return torch.from_numpy(np.repeat(same, counts))


def group_from_payload(payload: Payload, vocabulary: int, longest: int) -> Group:
    """Rows and flat tensors of a decoded payload.

    Raises Malformed for a token id outside the vocabulary or a rollout longer than the model's context, which would
    stop the process inside the model.
    """
    highest = int(max(payload.prompt.max(), payload.tokens.max()))
    if highest >= vocabulary:
        raise Malformed(f"payload {payload.id}: token id {highest}, and the model knows {vocabulary}")
    prompt = payload.prompt.astype(np.int64)
    longest_rollout = len(prompt) + int(payload.lengths.max())
    if longest_rollout > longest:
        raise Malformed(f"payload {payload.id}: {longest_rollout} tokens, and the model's context is {longest}")

    rows: list[Row] = []
    numbers: list[int] = []
    counts: list[int] = []
    advantages: list[float] = []
    for i in range(payload.group_size):
        tokens, mask = payload.rollout(i)
        places = np.flatnonzero(mask)
        if len(places) == 0:
            continue
        sequence = np.concatenate([prompt, tokens[: places[-1] + 1].astype(np.int64)])
        rows.append(Row(sequence, places + len(prompt), sum(counts)))
        numbers.append(i)
        counts.append(len(places))
        advantages.append(float(payload.advantages[i]))
    # numpy, because torch would wake its threads for each of these short arrays, which cost twice the work
    return Group(
        id=payload.id,
        rows=rows,
        l_gen=torch.from_numpy(payload.l_gen.astype(np.float32)),
        advantages=torch.from_numpy(np.repeat(np.array(advantages, np.float32), counts)),
        rollout=torch.from_numpy(np.repeat(np.arange(len(rows)), counts)),
        version_runs=payload.version_runs,
        canary_tokens=np.concatenate([payload.prompt, payload.rollout(0)[0]]),
        numbers=numbers,
    )
