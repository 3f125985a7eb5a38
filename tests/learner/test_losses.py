"""Each loss and its gradient against the literal float64 version, and what holds between losses."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import torch

from services.learner import losses
from services.learner.losses.denominators import per_constant, per_response, per_token
from tests.learner.literal_losses import Group, Rule, literal, nudged, ragged

NAMES = tuple(losses.LOSSES)
SEEDS = range(10)
OPTIONS = {
    "plain": {},
    "no importance weight": {"tis_cap": 0.0},
    "narrow": {"low": 0.02, "high": 0.05},
    "open below": {"low": 1.0, "high": 0.3},
    "dual": {"dual": 1.3},
    "decoupled": {"proximal_cap": 1.2},
    "shaped": {"shaping": 0.1},
    "all": {"dual": 1.3, "proximal_cap": 1.2, "shaping": 0.5},
}


class Ours:
    """The tensors of a batch, and the product's loss on them."""

    def __init__(self, groups: list[Group], dtype: torch.dtype = torch.float64) -> None:
        rollouts = [r for g in groups for r in g]
        tokens = [t for r in rollouts for t in r]
        self.rollout = torch.tensor([i for i, r in enumerate(rollouts) for _ in r])
        self.group_of_rollout = torch.tensor([number for number, g in enumerate(groups) for _ in g])

        def column(name: str) -> torch.Tensor:
            return torch.tensor([getattr(t, name) for t in tokens], dtype=dtype)

        self.logp = column("logp").requires_grad_()
        self.l_ref, self.l_gen, self.l_start = column("l_ref"), column("l_gen"), column("l_start")
        self.advantages = column("advantage")
        self.replayed = torch.tensor([t.replayed for t in tokens])

    def __len__(self) -> int:
        return len(self.logp)

    def weights(self, rule: Rule) -> torch.Tensor:
        return losses.LOSSES[rule.name].weights(self.rollout, self.group_of_rollout, rule.constant, None)

    def tokens(self, rule: Rule, at: torch.Tensor) -> losses.Tokens:
        l_old = self.l_start if rule.proximal_cap else self.l_ref
        return losses.Tokens(self.logp[at], l_old[at], self.advantages[at], self.rollout[at])

    def loss(self, rule: Rule, at: torch.Tensor | None = None, weights: torch.Tensor | None = None) -> torch.Tensor:
        at = torch.arange(len(self)) if at is None else at
        weights = self.weights(rule) if weights is None else weights
        factors = losses.importance_weights(self.l_ref[at], self.l_gen[at], rule.tis_cap)
        if rule.proximal_cap:
            factors = factors * losses.truncated(self.l_start[at], self.l_ref[at], rule.proximal_cap)
        clip = losses.Clip(rule.low, rule.high, rule.dual)
        loss, tokens = losses.LOSSES[rule.name], self.tokens(rule, at)
        return losses.value(loss, tokens, weights[at], factors, clip, self.replayed[at], rule.shaping)

    def dead(self, rule: Rule) -> torch.Tensor:
        clip, tokens = losses.Clip(rule.low, rule.high, rule.dual), self.tokens(rule, torch.arange(len(self)))
        return losses.dead(losses.LOSSES[rule.name], tokens, clip, self.replayed, rule.shaping)

    def gradient(self) -> torch.Tensor:
        assert self.logp.grad is not None
        return self.logp.grad


def gradient_of(ours: Ours, rule: Rule) -> torch.Tensor:
    ours.logp.grad = None
    ours.loss(rule).backward()
    return ours.gradient()


@functools.cache
def expected(seed: int, rule: Rule) -> tuple[float, list[float]]:
    """Both types are held to the same float64 version."""
    return literal(ragged(seed), rule)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_equal_a_literal_float64_version(name: str, option: str, dtype: torch.dtype) -> None:
    rule = Rule(name=name, **OPTIONS[option])
    for seed in SEEDS:
        value, slopes = expected(seed, rule)
        ours = Ours(ragged(seed), dtype)
        loss = ours.loss(rule)
        loss.backward()
        assert abs(loss.item() - value) < 1e-6
        np.testing.assert_allclose(ours.gradient().double().numpy(), slopes, rtol=0, atol=1e-6)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_literal_gradients_are_the_slopes_of_the_literal_losses(name: str, option: str) -> None:
    rule, step = Rule(name=name, **OPTIONS[option]), 1e-6
    for seed in range(2):
        groups = ragged(seed)
        _, slopes = literal(groups, rule)
        for place, slope in enumerate(slopes):
            up, _ = literal(nudged(groups, place, step), rule, held=groups)
            down, _ = literal(nudged(groups, place, -step), rule, held=groups)
            assert (up - down) / (2 * step) == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_into_micro_batches_gives_the_same_loss_and_gradient(name: str) -> None:
    rule = Rule(name=name, **OPTIONS["all"])
    for seed in range(5):
        ours = Ours(ragged(seed))
        whole, expected = ours.loss(rule).item(), gradient_of(ours, rule).clone()
        rng = np.random.default_rng(seed)
        order = torch.tensor(rng.permutation(ours.rollout.unique().numpy()))
        for size in (1, 2, 5):
            ours.logp.grad, total = None, 0.0
            weights = ours.weights(rule)
            for cut in order.split(size):
                at = torch.cat([(ours.rollout == r).nonzero().flatten() for r in cut])
                part = ours.loss(rule, at, weights)
                part.backward()
                total += part.item()
            assert total == pytest.approx(whole, abs=1e-12)
            torch.testing.assert_close(ours.gradient(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_dead_tokens_are_those_whose_gradient_the_clip_makes_zero(name: str, option: str) -> None:
    rule = Rule(name=name, **OPTIONS[option])
    dead = 0
    for seed in SEEDS:
        ours = Ours(ragged(seed))
        gone = (gradient_of(ours, rule) == 0) & (ours.advantages != 0)
        assert torch.equal(ours.dead(rule), gone)
        dead += int(gone.sum())
    assert (dead > 0) == (name != "cispo")


def test_without_a_moved_policy_the_losses_differ_in_their_denominators_alone() -> None:
    for seed in SEEDS:
        still = [[[dataclasses.replace(t, l_ref=t.logp) for t in r] for r in g] for g in ragged(seed)]
        slopes = {name: gradient_of(Ours(still), Rule(name=name)) for name in NAMES}
        ours = Ours(still)
        shares = {name: ours.weights(Rule(name=name)) for name in NAMES}
        for name in ("dapo", "dr_grpo", "cispo"):
            torch.testing.assert_close(slopes[name] / shares[name], slopes["grpo"] / shares["grpo"])
        plain = Rule(name="gspo", tis_cap=0.0)
        grpo = dataclasses.replace(plain, name="grpo")
        torch.testing.assert_close(gradient_of(Ours(still), plain), gradient_of(Ours(still), grpo))


def test_decoupled_clipping_is_plain_where_the_policy_has_not_moved_since_the_reference() -> None:
    for name in NAMES:
        groups = [[[dataclasses.replace(t, l_start=t.l_ref) for t in r] for r in g] for g in ragged(1)]
        plain, decoupled = Rule(name=name), Rule(name=name, proximal_cap=5.0)
        assert Ours(groups).loss(plain).item() == pytest.approx(Ours(groups).loss(decoupled).item(), abs=1e-12)


def test_a_decoupled_clip_keeps_what_a_plain_one_would_take_from_a_stored_group() -> None:
    a = torch.ones(1)
    logp, l_ref = torch.tensor([-0.5]), torch.tensor([-1.5])  # e times as likely as at the reference
    clip, loss, none = losses.Clip(0.2, 0.2), losses.LOSSES["grpo"], torch.tensor([False])
    at = torch.zeros(1, dtype=torch.int64)
    assert losses.dead(loss, losses.Tokens(logp, l_ref, a, at), clip, none, 0.0).item()
    assert not losses.dead(loss, losses.Tokens(logp, logp, a, at), clip, none, 0.0).item()


def test_zero_advantages_give_no_loss_and_no_gradient() -> None:
    groups = [[[dataclasses.replace(t, advantage=0.0) for t in r] for r in g] for g in ragged(0)]
    for name in NAMES:
        ours, rule = Ours(groups), Rule(name=name, **OPTIONS["all"])
        assert gradient_of(ours, rule).abs().max() == 0
        assert ours.loss(rule).item() == 0


@pytest.mark.parametrize("shaping", [0.0, 0.1])
def test_a_ratio_that_overflows_leaves_the_gradient_finite(shaping: float) -> None:
    for loss in losses.LOSSES.values():
        logp = torch.tensor([-1.0, -1.0], requires_grad=True)
        tokens = losses.Tokens(logp, torch.tensor([-500.0, -500.0]), torch.tensor([1.0, -1.0]), torch.tensor([0, 1]))
        half, both = torch.ones(2) / 2, torch.tensor([True, True])
        value = losses.value(loss, tokens, half, torch.ones(2), losses.Clip(0.2, 0.28), both, shaping)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(logp.grad).all()  # type: ignore[union-attr]


def shape(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    ours = Ours(ragged(seed))
    return ours.rollout, ours.group_of_rollout


def test_shares_of_a_mean_add_up_to_one() -> None:
    for seed in SEEDS:
        for mean in (per_response, per_token):
            assert mean(*shape(seed)).sum().item() == pytest.approx(1.0, abs=1e-12)


def test_a_constant_denominator_makes_all_tokens_of_a_group_count_the_same() -> None:
    rollout, group_of_rollout = shape(3)
    got = per_constant(rollout, group_of_rollout, 50)
    for g in range(int(group_of_rollout.max()) + 1):
        assert len(got[group_of_rollout[rollout] == g].unique()) == 1


def test_a_group_without_trained_tokens_does_not_dilute_the_others() -> None:
    rollout = torch.tensor([0, 0])
    for mean in (per_response, per_token, per_constant):
        alone = mean(rollout, torch.tensor([0]), 8)
        assert torch.equal(alone, mean(rollout, torch.tensor([0, 1, 1]), 8))


def test_groups_count_by_their_share() -> None:
    rollout, groups = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1])
    share = torch.tensor([0.25, 1.0], dtype=torch.float64)
    got: Any = per_response(rollout, groups, share=share)
    assert torch.allclose(got, torch.tensor([0.1, 0.1, 0.4, 0.4], dtype=torch.float64))
    same = torch.full((2,), 0.5, dtype=torch.float64)
    assert torch.allclose(per_response(rollout, groups, share=same), per_response(rollout, groups))


def test_importance_weight_is_truncated_and_one_without_mismatch() -> None:
    l_gen = torch.tensor([-1.0, -9.0, -1.0])
    l_ref = torch.tensor([-1.0, -1.0, -2.0])
    expected = torch.tensor([1.0, 2.0, float(np.exp(-1.0))])
    assert torch.allclose(losses.importance_weights(l_ref, l_gen, 2.0), expected)


def test_a_cap_of_zero_turns_the_importance_weight_off() -> None:
    assert losses.importance_weights(torch.tensor([-1.0, 0.0]), torch.tensor([-3.0, -1.0]), 0.0).tolist() == [1.0, 1.0]


def test_k3_is_its_formula_and_so_is_its_gradient() -> None:
    rng = np.random.default_rng(0)
    logp, l_frozen = -rng.exponential(size=50), -rng.exponential(size=50)
    t = torch.tensor(logp, requires_grad=True)
    got = losses.kl_k3(t, torch.tensor(l_frozen))
    got.sum().backward()
    x = l_frozen - logp
    np.testing.assert_allclose(got.detach().numpy(), np.exp(x) - 1 - x, atol=1e-12)
    np.testing.assert_allclose(t.grad.numpy(), 1 - np.exp(x), atol=1e-12)  # type: ignore[union-attr]
