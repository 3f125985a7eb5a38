"""Batches that use single rollouts of a stored group, or rollouts that join another group."""

import copy
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

from services.learner.groups.parts import part_of
from services.learner.losses.denominators import per_response
from services.learner.model.batching import flatten, mini_batches
from services.learner.step import scan, train_step
from shared.advantages import group_advantages
from shared.messages import Batch, Malformed, Part, ScanResult, decode, encode
from shared.versions import Version


def plain_gradient(model: Any, weighted: list[tuple[Any, int, float, float]]) -> list[torch.Tensor]:
    """Of the loss in which rollout `row` of a group has this weight and advantage; one sequence at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for group, place, weight, advantage in weighted:
        row = group.rows[place]
        logits = model(torch.tensor(row.tokens[None, :-1])).logits[0].float()
        logp = log_softmax(logits, -1)[row.positions - 1, row.tokens[row.positions]]
        span = slice(row.start, row.start + len(row.positions))
        l_ref = group.l_ref[span] if group.l_ref is not None else logp.detach()
        ratio = (logp - l_ref).exp()
        tis = (l_ref - group.l_gen[span]).exp().clamp(max=2.0)
        token_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * tis
        total = total + weight * token_loss.double().mean()
    total.backward()
    return [p.grad.clone() for p in model.parameters()]


def our_gradient(trainer: Any, replay: list[Any], fresh: list[Any]) -> list[torch.Tensor]:
    taken: list[torch.Tensor] = []
    original = trainer.optimiser.step

    def spy(step: int) -> tuple[float, float]:
        taken.extend(p.grad.clone() for p in trainer.optimiser.masters)
        return original(step)

    trainer.optimiser.step = spy
    train_step(trainer, 0, replay, fresh)
    return taken


def advantage_of(group: Any, place: int) -> float:
    return float(group.advantages[group.rows[place].start])


def test_single_rollouts_count_as_much_as_those_of_whole_groups(model: Any, make_group: Any, make_trainer: Any):
    old = make_group("old", 100, stored=0.05)
    new = [make_group(f"new{i}", i) for i in range(2)]
    part = part_of(old, Part(rollouts=[3, 1]))
    weighted = [(g, place, 1 / 10, advantage_of(g, place)) for g in new for place in range(4)]
    weighted += [(old, place, 1 / 10, advantage_of(old, place)) for place in (1, 3)]
    expected = plain_gradient(copy.deepcopy(model), weighted)
    got = our_gradient(make_trainer(model, micro_tokens=64), [part], new)
    largest = max(float(g.abs().max()) for g in expected)
    assert largest > 1e-3
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5 * largest + 1e-7, rtol=1e-4)


def test_a_rollout_that_joins_a_group_is_averaged_with_its_rollouts(model: Any, make_group: Any, make_trainer: Any):
    old = make_group("old", 100, stored=0.05)
    rewards = [1.0, 0.0, 0.0, 1.0]
    new = [make_group("new0", 0, rewards=rewards[:3]), make_group("new1", 1)]
    a = group_advantages(rewards).tolist()
    joined = part_of(old, Part(rollouts=[0], advantages=[a[3]], joins="new0"))
    host = part_of(new[0], Part(rollouts=[0, 1, 2], advantages=a[:3]))
    weighted = [(old, 0, 1 / 8, a[3])] + [(new[0], place, 1 / 8, a[place]) for place in range(3)]
    weighted += [(new[1], place, 1 / 8, advantage_of(new[1], place)) for place in range(4)]
    expected = plain_gradient(copy.deepcopy(model), weighted)
    got = our_gradient(make_trainer(model), [joined], [host, new[1]])
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_records_keep_the_batches_order_when_a_part_is_trained_beside_the_group_it_joins(
    model: Any, make_group: Any, make_trainer: Any
):
    joined = part_of(make_group("old", 100, stored=0.05), Part(rollouts=[0], joins="new1"))
    new = [make_group(f"new{i}", i) for i in range(2)]
    records, _ = train_step(make_trainer(model, mini_batch=1), 0, [joined], new)
    assert [r.id for r in records] == ["old", "new0", "new1"]
    cuts = mini_batches([joined, *new], 1)
    assert [[g.id for g in cut] for cut in cuts] == [["new0"], ["old", "new1"]]


def test_weights_of_parts_add_up_to_one(make_group: Any):
    groups = [part_of(make_group("a", 1, stored=0.1), Part(rollouts=[2])), make_group("b", 2)]
    flat = flatten(groups)
    weights = per_response(flat.rollout, flat.group_of_rollout, share=flat.share)
    assert weights.sum().item() == pytest.approx(1)
    assert weights[flat.group_of_rollout[flat.rollout] == 0].sum().item() == pytest.approx(1 / 5)


def test_a_part_keeps_tokens_references_and_advantages_of_its_rollouts(make_group: Any):
    group = make_group("g", 3, stored=0.1, rewards=[1.0, 0.0, None, 1.0])
    assert group.numbers == [0, 1, 3]
    part = part_of(group, Part(rollouts=[3, 0]))
    spans = [slice(r.start, r.start + len(r.positions)) for r in (group.rows[0], group.rows[2])]
    for name in ("l_gen", "l_ref", "advantages"):
        assert torch.equal(getattr(part, name), torch.cat([getattr(group, name)[span] for span in spans]))
    assert part.version_runs[:, 0].sum() == part.tokens == sum(len(r.positions) for r in part.rows)
    assert [row.start for row in part.rows] == [0, len(part.rows[0].positions)]


def test_a_rollout_that_was_not_scored_cannot_be_a_part(make_group: Any):
    group = make_group("g", 3, rewards=[1.0, 0.0, None, 1.0])
    with pytest.raises(Malformed, match="rollout 2"):
        part_of(group, Part(rollouts=[0, 2]))


def test_a_scan_tells_the_entropy_of_each_rollout_only_where_asked(model: Any, make_group: Any, make_trainer: Any):
    groups = [make_group("g", 3, stored=0.1, rewards=[1.0, 0.0, None, 1.0]), make_group("h", 4, stored=0.1)]
    assert [r.entropies for r in scan(make_trainer(model), groups)] == [None, None]
    for record, group in zip(scan(make_trainer(model), groups, per_rollout=True), groups, strict=True):
        assert record.entropies is not None and list(record.entropies) == group.numbers
        for number, row in zip(group.numbers, group.rows, strict=True):
            own = group.l_gen[row.start : row.start + len(row.positions)]  # these weights sampled it
            assert record.entropies[number] == pytest.approx(-own.mean().item(), abs=1e-5)
        result = ScanResult(scan="1", step=0, version=Version(0, 0), records=[record], seconds=0.0)
        assert decode(encode(result), ScanResult) == result


def test_parts_travel_with_the_batch_and_old_batches_have_none():
    parts = {"g": Part(rollouts=[1], advantages=[0.5], joins="h")}
    batch = Batch(step=3, replay=["g"], fresh=["h"], parts=parts)
    assert decode(encode(batch), Batch) == batch
    assert Batch(step=3, replay=[], fresh=[]).parts == {}
