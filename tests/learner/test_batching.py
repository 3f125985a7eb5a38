"""Cutting work into mini- and micro-batches."""

import itertools
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.groups.group import Row
from services.learner.model.batching import flat_index, flatten, micro_batches, mini_batches, tokens_read


def rows_of(lengths: list[int]) -> list[Row]:
    out, start = [], 0
    for n in lengths:
        out.append(Row(np.zeros(n + 1, np.int64), np.arange(1, n + 1), start))
        start += n
    return out


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(64, 600))
def test_every_row_is_in_one_micro_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    rows = rows_of(lengths)
    for packed in (False, True):
        cuts = list(micro_batches(rows, budget, packed=packed))
        assert sorted(r.start for cut in cuts for r in cut) == [r.start for r in rows]
        assert all(tokens_read(cut, packed=packed) <= budget or len(cut) == 1 for cut in cuts)
        for cut, after in itertools.pairwise(cuts):
            assert tokens_read([*cut, after[0]], packed=packed) > budget  # none could have been fuller


def test_a_row_above_the_budget_is_alone() -> None:
    for packed in (False, True):
        cuts = list(micro_batches(rows_of([10, 500, 20]), 100, packed=packed))
        assert [[r.inputs for r in cut] for cut in cuts] == [[500], [20, 10]]


def test_packed_rows_cost_what_they_are_long() -> None:
    cuts = list(micro_batches(rows_of([60, 20, 20, 40]), 100, packed=True))
    assert [[r.inputs for r in cut] for cut in cuts] == [[60, 40], [20, 20]]


def test_rows_of_like_length_share_a_micro_batch_so_padding_is_little() -> None:
    lengths = np.random.default_rng(0).integers(40, 110, 256).tolist()
    cuts = list(micro_batches(rows_of(lengths), 4096, packed=False))
    assert 1 - sum(lengths) / sum(tokens_read(c, packed=False) for c in cuts) < 0.1  # unsorted: 0.3


def test_the_cut_is_the_same_every_time() -> None:
    rows = rows_of([5, 7, 5, 5, 7])
    first = [[r.start for r in cut] for cut in micro_batches(rows, 14, packed=True)]
    assert first == [[r.start for r in cut] for cut in micro_batches(list(reversed(rows)), 14, packed=True)]


def test_results_scattered_by_flat_index_are_in_flat_order() -> None:
    rows = rows_of([3, 9, 1, 4])
    out = torch.full((17,), -1)
    for cut in micro_batches(rows, 9, packed=True):
        out[flat_index(cut)] = torch.cat([torch.arange(r.start, r.start + len(r.positions)) for r in cut])
    assert out.tolist() == list(range(17))


def test_mini_batches_keep_the_order_and_zero_means_one(make_group: Any) -> None:
    groups = [make_group(f"g{i}", i) for i in range(5)]
    ids = [[g.id for g in batch] for batch in mini_batches(groups, 2)]
    assert ids == [["g0", "g1"], ["g2", "g3"], ["g4"]]
    assert len(mini_batches(groups, 0)) == 1
    assert mini_batches([], 0) == []


def test_flat_tensors_are_the_groups_one_after_another(make_group: Any) -> None:
    groups = [make_group("a", 1), make_group("b", 2, rewards=[1.0, None, 0.0])]
    flat = flatten(groups)
    assert flat.tokens == sum(g.tokens for g in groups)
    assert torch.equal(flat.l_gen, torch.cat([g.l_gen for g in groups]))
    assert flat.group_of_rollout.tolist() == [0] * 4 + [1] * 2  # the unscored rollout has no trained token, and no row
    assert [r.start for r in flat.rows] == np.cumsum([0] + [len(r.positions) for r in flat.rows[:-1]]).tolist()
    assert (flat.rollout.bincount() == torch.tensor([len(r.positions) for r in flat.rows])).all()
