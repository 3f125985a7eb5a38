"""The loss and its gradient against a plain float64 version in numpy that shares no code with it."""

import numpy as np
import pytest
import torch

from services.learner import loss as losses

LOW, HIGH, CAP = 0.2, 0.28, 2.0


def ragged(seed: int) -> dict[str, np.ndarray]:
    """Groups of 1 to 6 rollouts, some without trained tokens, some advantages zero, ratios around the clip."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, rng.integers(1, 6))
    group_of_rollout = np.repeat(np.arange(len(sizes)), sizes)
    lengths = rng.integers(0, 9, len(group_of_rollout))
    lengths[np.cumsum(sizes) - 1] = np.maximum(lengths[np.cumsum(sizes) - 1], 1)
    advantage = rng.normal(size=len(lengths)) * (rng.random(len(lengths)) > 0.3)
    tokens = lengths.sum()
    return {
        "rollout": np.repeat(np.arange(len(lengths)), lengths),
        "group_of_rollout": group_of_rollout,
        "advantages": np.repeat(advantage, lengths),
        "logp": -rng.exponential(size=tokens),
        "l_ref": -rng.exponential(size=tokens),
        "l_gen": -rng.exponential(size=tokens),
        "l_frozen": -rng.exponential(size=tokens),
    }


def literal(d: dict[str, np.ndarray], kl: float) -> tuple[float, np.ndarray]:
    """Loss and d loss / d logp, token by token, as the formula is written."""
    total, gradient = 0.0, np.zeros(len(d["logp"]))
    groups = {int(d["group_of_rollout"][r]) for r in d["rollout"]}
    for g in groups:
        rollouts = [r for r in np.flatnonzero(d["group_of_rollout"] == g) if (d["rollout"] == r).any()]
        for r in rollouts:
            places = np.flatnonzero(d["rollout"] == r)
            for t in places:
                share = 1 / (len(groups) * len(rollouts) * len(places))
                a, ratio = d["advantages"][t], np.exp(d["logp"][t] - d["l_ref"][t])
                tis = min(np.exp(d["l_ref"][t] - d["l_gen"][t]), CAP)
                clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
                use_ratio = ratio * a <= clipped * a
                total -= share * tis * (ratio * a if use_ratio else clipped * a)
                if use_ratio:
                    gradient[t] -= share * tis * ratio * a
                x = d["l_frozen"][t] - d["logp"][t]
                total += share * kl * (np.exp(x) - 1 - x)
                gradient[t] += share * kl * (1 - np.exp(x))
    return float(total), gradient


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_loss_and_gradient_equal_a_literal_float64_version(dtype: torch.dtype, kl: float) -> None:
    for seed in range(40):
        d = ragged(seed)
        expected, expected_gradient = literal(d, kl)
        t = {k: torch.tensor(v, dtype=dtype if v.dtype == np.float64 else torch.int64) for k, v in d.items()}
        logp = t["logp"].requires_grad_()
        weights = losses.token_weights(t["rollout"], t["group_of_rollout"])
        tis = losses.importance_weights(t["l_ref"], t["l_gen"], CAP)
        loss = losses.grpo(logp, t["l_ref"], t["advantages"], weights, tis, clip_low=LOW, clip_high=HIGH)
        loss = loss + kl * (weights * losses.kl_k3(logp, t["l_frozen"])).sum()
        loss.backward()
        assert logp.grad is not None
        assert abs(loss.item() - expected) < 1e-6
        np.testing.assert_allclose(logp.grad.double().numpy(), expected_gradient, rtol=0, atol=1e-6)


def test_weights_of_the_tokens_add_up_to_one() -> None:
    for seed in range(20):
        d = ragged(seed)
        weights = losses.token_weights(torch.tensor(d["rollout"]), torch.tensor(d["group_of_rollout"]))
        assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)


def test_a_group_without_trained_tokens_does_not_dilute_the_others() -> None:
    alone = losses.token_weights(torch.tensor([0, 0]), torch.tensor([0]))
    beside_an_empty_group = losses.token_weights(torch.tensor([0, 0]), torch.tensor([0, 1, 1]))
    assert torch.equal(alone, beside_an_empty_group)


def test_zero_advantages_give_no_loss_and_no_gradient() -> None:
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    zero = torch.zeros(2)
    loss = losses.grpo(logp, zero - 1, zero, torch.ones(2) / 2, torch.ones(2), clip_low=LOW, clip_high=HIGH)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logp.grad, zero)  # type: ignore[arg-type]


def test_a_ratio_that_overflows_leaves_the_gradient_finite() -> None:
    logp = torch.tensor([-1.0, -1.0], requires_grad=True)
    l_ref, a = torch.tensor([-500.0, -500.0]), torch.tensor([1.0, -1.0])
    loss = losses.grpo(logp, l_ref, a, torch.ones(2) / 2, torch.ones(2), clip_low=LOW, clip_high=HIGH)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logp.grad).all()  # type: ignore[union-attr]


def test_dead_tokens_are_those_whose_gradient_the_clip_makes_zero() -> None:
    for seed in range(20):
        d = ragged(seed)
        t = {k: torch.tensor(v) for k, v in d.items()}
        logp = t["logp"].requires_grad_()
        losses.grpo(
            logp,
            t["l_ref"],
            t["advantages"],
            torch.ones_like(logp),
            torch.ones_like(logp),
            clip_low=LOW,
            clip_high=HIGH,
        ).backward()
        dead = losses.dead(t["logp"], t["l_ref"], t["advantages"], clip_low=LOW, clip_high=HIGH)
        assert logp.grad is not None
        assert torch.equal(dead, (logp.grad == 0) & (t["advantages"] != 0))


def test_importance_weight_is_truncated_and_one_without_mismatch() -> None:
    l_gen = torch.tensor([-1.0, -9.0, -1.0])
    l_ref = torch.tensor([-1.0, -1.0, -2.0])
    expected = torch.tensor([1.0, 2.0, float(np.exp(-1.0))])
    assert torch.allclose(losses.importance_weights(l_ref, l_gen, CAP), expected)


def test_a_cap_of_zero_turns_the_importance_weight_off() -> None:
    assert losses.importance_weights(torch.tensor([-1.0, 0.0]), torch.tensor([-3.0, -1.0]), 0.0).tolist() == [1.0, 1.0]
