"""One training step on groups that a real policy sampled."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

from services.learner import losses, statistics
from services.learner.losses.denominators import per_response
from services.learner.model import logprob, policy
from services.learner.model.batching import flatten, micro_batches
from services.learner.step import forward, scan, train_step
from services.learner.stop import Stopped
from shared.model_files import find_model
from tests.tiny_model import VOCABULARY

ATLAS_POLICY = Path(__file__).resolve().parents[2] / "examples" / "atlas" / "policy"


def groups_of(make_group: Any, replayed: int = 2, fresh: int = 3) -> tuple[list[Any], list[Any]]:
    old = [make_group(f"old{i}", 100 + i, stored=0.05) for i in range(replayed)]
    new = [make_group(f"new{i}", i, rewards=[1.0, 0.0, None, 1.0, 0.0]) for i in range(fresh)]
    return old, new


def gradients(trainer: Any, replay: list[Any], fresh: list[Any]) -> list[list[torch.Tensor]]:
    """Of each mini-batch of a step."""
    taken: list[list[torch.Tensor]] = []
    original = trainer.optimiser.step

    def spy(step: int) -> tuple[float, float]:
        taken.append([p.grad.clone() for p in trainer.optimiser.masters])
        return original(step)

    trainer.optimiser.step = spy
    train_step(trainer, 0, replay, fresh)
    return taken


def gradient(trainer: Any, replay: list[Any], fresh: list[Any]) -> list[torch.Tensor]:
    [only] = gradients(trainer, replay, fresh)
    return only


def plain_step(model: Any, replay: list[Any], fresh: list[Any], optimiser: torch.optim.Optimizer) -> None:
    """The same step as a straightforward loop: one sequence at a time, full logits, no flat tensors."""
    total = torch.zeros((), dtype=torch.float64)
    for group in [*replay, *fresh]:
        group_loss = torch.zeros((), dtype=torch.float64)
        for row in group.rows:
            logits = model(torch.tensor(row.tokens[None, :-1])).logits[0].float()
            logp = log_softmax(logits, -1)[row.positions - 1, row.tokens[row.positions]]
            span = slice(row.start, row.start + len(row.positions))
            l_ref = group.l_ref[span] if group.l_ref is not None else logp.detach()
            a, ratio = group.advantages[span], (logp - l_ref).exp()
            tis = (l_ref - group.l_gen[span]).exp().clamp(max=2.0)
            token_loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) * tis
            group_loss = group_loss + token_loss.double().mean() / len(group.rows)
        total = total + group_loss / (len(replay) + len(fresh))
    optimiser.zero_grad()
    total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def test_l_ref_equals_l_gen_at_lag_zero(model: Any, make_group: Any, make_trainer: Any) -> None:
    groups = [make_group(f"g{i}", i) for i in range(4)]
    train_step(make_trainer(model), 0, [], groups)
    for group in groups:
        assert (group.l_ref - group.l_gen).abs().max() < 1e-5


def test_a_step_equals_a_plain_implementation(model: Any, make_group: Any, make_trainer: Any) -> None:
    replay, fresh = groups_of(make_group)
    other = copy.deepcopy(model)
    plain_step(other, replay, fresh, torch.optim.AdamW(other.parameters(), lr=1e-3, weight_decay=0.0))
    train_step(make_trainer(model, micro_tokens=64), 0, replay, fresh)
    moved = 0.0
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        moved += ours.abs().sum().item()
    assert moved > 0


LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": {"dual_clip": 3.0},
    "dr_grpo": {"denominator_tokens": 24, "proximal_cap": 2.0},
    "gspo": {"clip_low": 0.02, "clip_high": 0.02},
    "cispo": {"replay_shaping": 0.1},
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_does_not_depend_on_the_micro_batches(
    loss: str, model: Any, make_group: Any, make_trainer: Any
) -> None:
    replay, fresh = groups_of(make_group)
    settings = {"loss": loss} | LOSSES[loss]
    split = gradient(make_trainer(copy.deepcopy(model), micro_tokens=64, **settings), replay, fresh)
    whole = gradient(make_trainer(copy.deepcopy(model), micro_tokens=10**6, **settings), replay, fresh)
    assert len(list(micro_batches(flatten([*replay, *fresh]).rows, 64, packed=True))) > 4
    largest = max(g.abs().max() for g in whole)
    assert largest > 1e-4
    for a, b in zip(split, whole, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * float(largest) + 1e-7, rtol=1e-4)


def token_losses(trainer: Any, groups: list[Any], l_start: dict[str, Any], cap: float) -> torch.Tensor:
    """The decoupled loss of a mini-batch, one sequence at a time: weight to the start of the step, clip from there."""
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        for row in group.rows:
            span = slice(row.start, row.start + len(row.positions))
            logp, a = policy.logprobs(trainer.model, [row], 1.0), group.advantages[span]
            start = l_start[group.id][span]
            weight = (start - group.l_ref[span]).exp().clamp(max=cap)
            tis = (group.l_ref[span] - group.l_gen[span]).exp().clamp(max=2.0)
            ratio = (logp - start).exp()
            objective = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) * weight * tis
            total = total - objective.double().mean() / len(group.rows) / len(groups)
    return total


@pytest.mark.parametrize("reference", ["trainer", "engine"])
def test_decoupled_clipping_weighs_to_the_weights_at_the_start_of_the_step(
    reference: str, model: Any, make_group: Any, make_trainer: Any
) -> None:
    old = [make_group(f"old{i}", 100 + i, stored=0.5) for i in range(3)]
    new = [make_group("new", 1)]
    other = copy.deepcopy(model)
    trainer = make_trainer(model, mini_batch=2, proximal_cap=1.3, lr=1e-2, reference=reference)
    plain = make_trainer(other, lr=1e-2)
    with torch.no_grad():
        l_start = {g.id: policy.logprobs(other, g.rows, 1.0) for g in [*old, *new]}
    got = gradients(trainer, old, new)
    for batch, ours in zip((old[:2], [old[2], *new]), got, strict=True):
        token_losses(plain, batch, l_start, 1.3).backward()
        theirs = [p.grad.clone() for p in other.parameters()]
        plain.optimiser.step(0)
        largest = float(max(g.abs().max() for g in theirs))
        assert largest > 1e-3
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-3 * largest, rtol=0)


def test_the_importance_weight_is_frozen_with_the_group(
    model: Any, make_group: Any, make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group("g", 1)
    group.l_gen = (group.l_gen - 0.3 * torch.rand(group.tokens, generator=torch.Generator().manual_seed(0))).clone()
    seen: list[torch.Tensor] = []
    value = losses.value

    def spy(loss: Any, tokens: Any, weights: Any, factors: torch.Tensor, *rest: Any) -> Any:
        seen.append(factors)
        return value(loss, tokens, weights, factors, *rest)

    monkeypatch.setattr(losses, "value", spy)
    trainer = make_trainer(model, lr=1e-2, tis_cap=1.2)
    train_step(trainer, 0, [], [group])
    for step in (1, 2):
        records, _ = train_step(trainer, step, [group], [])
        assert records[0].drift > 1e-6  # the policy has moved, the weight has not
    assert seen[0].max() == pytest.approx(1.2)
    assert seen[0].min() > 1.0
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_shaping_takes_replayed_rollouts_alone_out_of_the_clip(model: Any, make_group: Any, make_trainer: Any) -> None:
    old, new = make_group("old", 1, stored=0.5), make_group("new", 2)
    plain = train_step(make_trainer(copy.deepcopy(model)), 0, [old], [new])[0]
    shaped = train_step(make_trainer(copy.deepcopy(model), replay_shaping=0.1), 0, [old], [new])[0]
    assert plain[0].dead_share > 0
    assert shaped[0].dead_share == 0
    only_new = [gradient(make_trainer(copy.deepcopy(model), replay_shaping=c), [], [new]) for c in (0.0, 0.1)]
    assert all(torch.equal(a, b) for a, b in zip(*only_new, strict=True))
    assert scan(make_trainer(model, replay_shaping=0.1), [old])[0].dead_share == 0


def test_records_say_which_tokens_the_loss_at_hand_loses(model: Any, make_group: Any, make_trainer: Any) -> None:
    old = make_group("old", 1, stored=0.5)
    shares = {}
    for loss, settings in LOSSES.items():
        trainer = make_trainer(copy.deepcopy(model), loss=loss, **settings | {"replay_shaping": 0.0})
        shares[loss] = scan(trainer, [old])[0].dead_share
        records, totals = train_step(trainer, 0, [old], [])
        assert records[0].dead_share == shares[loss]
        assert totals.dead / totals.tokens == pytest.approx(shares[loss])
    assert 0 < shares["dapo"] <= shares["grpo"]  # its clip is higher
    assert shares["gspo"] > 0
    assert shares["cispo"] == shares["dr_grpo"] == 0  # no token is lost; the step has not moved yet


def test_mini_batches_take_l_ref_before_the_first_update(model: Any, make_group: Any, make_trainer: Any) -> None:
    fresh = [make_group(f"g{i}", i) for i in range(4)]
    records, totals = train_step(make_trainer(model, mini_batch=1, lr=1e-2), 0, [], fresh)
    assert all((g.l_ref - g.l_gen).abs().max() < 1e-5 for g in fresh)
    assert records[0].drift < 1e-10
    assert records[-1].drift > 1e-6  # the weights had moved when the last mini-batch was trained
    assert len(totals.norms) == 4


def test_reference_of_the_engine_is_l_gen(model: Any, make_group: Any, make_trainer: Any) -> None:
    fresh = [make_group("g", 1)]
    old = [make_group("old", 2, stored=0.5)]
    trainer = make_trainer(model, reference="engine")
    records = scan(trainer, old)
    assert records[0].drift < 1e-10  # to l_gen, not to the stored noise
    train_step(trainer, 0, [], fresh)
    assert torch.equal(fresh[0].l_ref, fresh[0].l_gen)


def test_records_come_in_batch_order_and_fresh_ones_carry_their_reference(
    model: Any, make_group: Any, make_trainer: Any
) -> None:
    replay, fresh = groups_of(make_group)
    records, _ = train_step(make_trainer(model, mini_batch=2), 0, replay, fresh)
    assert [r.id for r in records] == [g.id for g in [*replay, *fresh]]
    assert all(r.headroom_ref is None and r.engine_gap is None for r in records[:2])
    for r, g in zip(records[2:], fresh, strict=True):
        assert r.headroom_ref == pytest.approx(statistics.headroom(g.l_gen, g.advantages), abs=1e-5)
        assert r.engine_gap is not None
        assert r.engine_gap < 1e-10


def test_a_scan_says_what_the_training_forward_says(model: Any, make_group: Any, make_trainer: Any) -> None:
    replay, _ = groups_of(make_group, replayed=4)
    trainer = make_trainer(model, micro_tokens=64)
    before = [p.clone() for p in model.parameters()]
    scanned = scan(trainer, replay)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    trained, _ = train_step(trainer, 0, replay, [])
    for a, b in zip(scanned, trained, strict=True):
        assert a.id == b.id
        assert a.drift == pytest.approx(b.drift, rel=1e-4)
        assert a.headroom == pytest.approx(b.headroom, abs=1e-6)
    assert scan(trainer, []) == []


def test_the_kl_term_pulls_towards_the_frozen_model(model: Any, make_group: Any, make_trainer: Any) -> None:
    frozen = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) * 0.02)
    groups = [make_group(f"g{i}", i) for i in range(4)]
    for group in groups:
        group.advantages.zero_()
    trainer = make_trainer(model, frozen=frozen, kl=1.0)
    kls = [train_step(trainer, 0, [], groups)[1].kls[0] for _ in range(5)]
    assert kls[-1] < 0.7 * kls[0]


def test_the_same_batches_give_the_same_bits(model: Any, make_group: Any, make_trainer: Any) -> None:
    results = []
    for _ in range(2):
        again = copy.deepcopy(model)
        trainer = make_trainer(again, micro_tokens=64, mini_batch=2)
        for step in range(3):
            replay, fresh = groups_of(make_group)
            train_step(trainer, step, replay, fresh)
        results.append(list(again.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_chunked_logits_give_the_same_values_and_gradient(
    model: Any, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_group("g", 3).rows
    grads = []
    for at_once in (2**25, VOCABULARY * 3):
        monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", at_once)
        model.zero_grad()
        logp = policy.logprobs(model, rows, temperature=0.7)
        logp.square().sum().backward()
        grads.append((logp.detach(), [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(grads[0][0], grads[1][0], atol=1e-6, rtol=1e-6)
    for a, b in zip(grads[0][1], grads[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_logprobs_are_those_of_the_full_model_at_the_temperature(model: Any, make_group: Any) -> None:
    group = make_group("g", 5)
    ours = policy.logprobs(model, group.rows, temperature=0.5)
    for row in group.rows:
        full = log_softmax(model(torch.tensor(row.tokens[None])).logits[0].float() / 0.5, -1)
        expected = full[row.positions - 1, row.tokens[row.positions]]
        assert torch.allclose(ours[row.start : row.start + len(row.positions)], expected, atol=1e-5)


def test_an_empty_batch_moves_nothing(model: Any, make_trainer: Any) -> None:
    before = [p.clone() for p in model.parameters()]
    records, totals = train_step(make_trainer(model), 0, [], [])
    assert (records, totals.tokens) == ([], 0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_stop_is_taken_between_micro_batches(model: Any, make_group: Any, make_trainer: Any) -> None:
    trainer = make_trainer(model)
    trainer.stop._asked.set()
    with pytest.raises(Stopped):
        train_step(trainer, 0, [], [make_group("g", 1)])
    with pytest.raises(Stopped):
        forward(trainer, flatten([make_group("g", 1)]))


def test_token_weights_of_a_batch_add_up_to_one(make_group: Any) -> None:
    flat = flatten([*groups_of(make_group)[1]])
    assert per_response(flat.rollout, flat.group_of_rollout).sum().item() == pytest.approx(1)


def test_the_policy_of_the_demo_takes_a_step(make_group: Any, make_trainer: Any) -> None:
    model = policy.load_policy(find_model(str(ATLAS_POLICY)), torch.float32, torch.device("cpu"))
    groups = [make_group(f"g{i}", i) for i in range(3)]
    _, totals = train_step(make_trainer(model), 0, [], groups)
    assert totals.norms[0] > 0
    assert scan(make_trainer(model), groups)[0].drift > 0


def test_under_the_engines_reference_a_replayed_group_keeps_its_drift(model, make_group, make_trainer):
    trainer = make_trainer(model, reference="engine")
    old, new = make_group("old", 2), make_group("new", 3)
    old.l_gen = old.l_gen - 0.3  # as if the policy had moved since
    records, _ = train_step(trainer, 0, [old], [new])
    assert records[0].drift == pytest.approx(0.09, rel=1e-3) and records[1].drift < 1e-9
