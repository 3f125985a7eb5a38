"""Groups of which a batch uses single rollouts, or rollouts with other advantages than the stored ones.

Rollouts count the same: one of eight weighs an eighth of a group. A part that joins another group of the batch is
averaged with that group's own rollouts, so the two count as one group.
"""

from dataclasses import replace

import numpy as np
import torch

from services.learner.groups.group import Group, Row
from shared.messages import Malformed, Part


def part_of(group: Group, part: Part) -> Group:
    """The group with these rollouts alone, in their stored order. Raises Malformed for one without trained tokens."""
    chosen = sorted(set(part.rollouts))
    if not chosen or (part.advantages is not None and len(part.advantages) != len(part.rollouts)):
        raise Malformed(f"group {group.id}: a part of {len(part.rollouts)} rollouts, or advantages that do not fit it")
    if absent := [n for n in chosen if n not in group.numbers]:
        raise Malformed(f"group {group.id}: rollout {absent[0]} of a batch has no trained tokens")
    places = [group.numbers.index(n) for n in chosen]
    rows: list[Row] = []
    start = 0
    for place in places:
        rows.append(replace(group.rows[place], start=start))
        start += len(group.rows[place].positions)
    at = torch.cat([torch.arange(r.start, r.start + len(r.positions)) for r in (group.rows[p] for p in places)])
    lengths = torch.tensor([len(row.positions) for row in rows])
    advantages = group.advantages[at]
    if part.advantages is not None:
        given = dict(zip(part.rollouts, part.advantages, strict=True))
        advantages = torch.tensor([given[n] for n in chosen], dtype=torch.float32).repeat_interleave(lengths)
    versions = np.repeat(group.version_runs[:, 1:], group.version_runs[:, 0], axis=0)[at.numpy()]
    return replace(
        group,
        rows=rows,
        numbers=chosen,
        l_gen=group.l_gen[at],
        advantages=advantages,
        rollout=torch.arange(len(rows)).repeat_interleave(lengths),
        version_runs=np.column_stack([np.ones(len(at), np.int32), versions]),
        l_ref=None if group.l_ref is None else group.l_ref[at],
        share=len(rows) / len(group.rows),
        joins=part.joins,
    )
