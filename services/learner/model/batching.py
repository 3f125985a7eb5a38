"""Groups into mini-batches in their order, rollouts into micro-batches by tokens: deterministic, no I/O."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from services.learner.groups.group import Group, Row
from services.learner.model.prefixes import families


@dataclass(frozen=True)
class Flat:
    """The trained tokens of several groups, one after another. T tokens, R rows."""

    groups: list[Group]
    rows: list[Row]  # `start` counts from the first group's first token
    bounds: list[tuple[int, int]]  # of each group's tokens
    l_gen: Tensor  # float32[T]
    advantages: Tensor  # float32[T]
    rollout: Tensor  # int64[T], index into rows
    group_of_rollout: Tensor  # int64[R]; a group that joins another of these has its number
    share: Tensor | None  # float64[groups], how much each counts; None: the same

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.l_gen)

    @property
    def mass(self) -> float:
        """How many groups these count as."""
        numbers = self.group_of_rollout.unique()
        return float(len(numbers) if self.share is None else self.share[numbers].sum())

    @property
    def l_ref(self) -> Tensor:
        """As the groups have it now, float32[T]; NaN where one has none yet."""
        return self.over(lambda g: torch.full_like(g.l_gen, torch.nan) if g.l_ref is None else g.l_ref)

    def over(self, of_group: Callable[[Group], Tensor]) -> Tensor:
        """One tensor [T] out of one for each group."""
        parts = [of_group(g).to(self.l_gen.device) for g in self.groups]
        return torch.cat(parts) if parts else torch.empty_like(self.l_gen)


def flatten(groups: Sequence[Group], device: torch.device | str = "cpu") -> Flat:
    """The groups' tensors, concatenated and on `device`."""
    rows: list[Row] = []
    bounds: list[tuple[int, int]] = []
    rollouts: list[Tensor] = []
    group_of_rollout: list[int] = []
    tokens = 0
    number_of = {group.id: number for number, group in enumerate(groups)}
    for group in groups:
        number = number_of.get(group.joins, number_of[group.id])
        rollouts.append(group.rollout + len(rows))
        rows += [replace(row, start=row.start + tokens) for row in group.rows]
        group_of_rollout += [number] * len(group.rows)
        bounds.append((tokens, tokens + group.tokens))
        tokens += group.tokens
    return Flat(
        groups=list(groups),
        rows=rows,
        bounds=bounds,
        l_gen=torch.cat([torch.empty(0), *(g.l_gen for g in groups)]).to(device),
        advantages=torch.cat([torch.empty(0), *(g.advantages for g in groups)]).to(device),
        rollout=torch.cat([torch.empty(0, dtype=torch.int64), *rollouts]).to(device),
        group_of_rollout=torch.tensor(group_of_rollout, dtype=torch.int64).to(device),
        share=_shares(groups).to(device) if any(g.share != 1.0 for g in groups) else None,
    )


def _shares(groups: Sequence[Group]) -> Tensor:
    return torch.tensor([g.share for g in groups], dtype=torch.float64)


class Joining(Protocol):
    """What has an id and may join another of its batch."""

    @property
    def id(self) -> str: ...

    @property
    def joins(self) -> str: ...


J = TypeVar("J", bound=Joining)


def mini_batches(groups: Sequence[J], size: int) -> list[list[J]]:
    """Cuts of `size` groups in order, so that replay is trained before the weights move away; 0: all in one.

    What joins a group of the batch goes where that group goes, and does not count.
    """
    there = {group.id for group in groups}
    joining: dict[str, list[J]] = {}
    for group in groups:
        if group.joins in there:
            joining.setdefault(group.joins, []).append(group)
    own = [group for group in groups if group.joins not in there]
    size = size or max(len(own), 1)
    cuts = [own[at : at + size] for at in range(0, len(own), size)]
    return [[one for group in cut for one in (*joining.get(group.id, ()), group)] for cut in cuts]


def micro_batches(rows: Sequence[Row], budget: int, *, packed: bool, sharing: bool = False) -> Iterator[list[Row]]:
    """Rows sorted by length, longest first, cut so that what the model reads stays within `budget` tokens.

    Packed rows cost what they are long; where they are `sharing` prompts, those that can follow the longest of them.
    Others are padded to the longest beside them; neighbours in length share a micro-batch, so padding is little. A row
    above the budget is one of its own.
    """
    batch: list[Row] = []
    held = 0
    for row in _in_order(rows, sharing=sharing):
        cost = row.inputs if packed or not batch else batch[0].inputs
        if batch and held + cost > budget:
            yield batch
            batch, held, cost = [], 0, row.inputs
        batch.append(row)
        held += cost
    if batch:
        yield batch


def _in_order(rows: Sequence[Row], *, sharing: bool) -> list[Row]:
    order = sorted(rows, key=lambda r: (-r.inputs, r.start))
    place = list(range(len(order)))
    for members in families(order).values() if sharing else ():
        for family in members:
            for i in family:
                place[i] = family[0]
    return [order[i] for i in sorted(range(len(order)), key=lambda i: (place[i], i))]


def flat_index(rows: Sequence[Row]) -> Tensor:
    """Where the trained tokens of these rows, in their order, lie among the flat tokens: int64[sum]."""
    return torch.cat([torch.arange(r.start, r.start + len(r.positions)) for r in rows])


def tokens_read(rows: Sequence[Row], *, packed: bool) -> int:
    """Tokens of one micro-batch's forward, padding included, as if no rows shared a prompt."""
    return sum(r.inputs for r in rows) if packed else len(rows) * max(r.inputs for r in rows)
