"""The scores of a group and the bounds that hold between them (docs/method.md, section 2)."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.learner import statistics
from shared.headroom import headroom as numpy_headroom
from shared.messages import Record

EXACT = 1e-6  # float32 log-probabilities


@st.composite
def scored_groups(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(log p, l_ref, advantages): from near certain to very unlikely, drifted a little or a lot."""
    tokens = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    l_ref = -rng.exponential(draw(st.sampled_from([1e-6, 1e-3, 1.0, 20.0])), tokens)
    logp = np.minimum(l_ref + rng.normal(size=tokens) * draw(st.sampled_from([0.0, 1e-4, 0.1, 3.0])), 0.0)
    advantages = rng.normal(size=tokens) * (rng.random(tokens) > 0.2)
    to_tensor = [torch.tensor(x, dtype=torch.float32) for x in (logp, l_ref, advantages)]
    return to_tensor[0], to_tensor[1], to_tensor[2]


@settings(max_examples=300, deadline=None)
@given(scored_groups())
def test_headroom_moves_by_at_most_the_root_of_drift(group: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    logp, l_ref, advantages = group
    moved = abs(statistics.headroom(logp, advantages) - statistics.headroom(l_ref, advantages))
    assert moved <= statistics.drift(logp, l_ref) ** 0.5 + EXACT


@settings(max_examples=300, deadline=None)
@given(scored_groups())
def test_headroom_moves_by_at_most_the_mean_absolute_drift(
    group: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    logp, l_ref, advantages = group
    moved = abs(statistics.headroom(logp, advantages) - statistics.headroom(l_ref, advantages))
    l1 = statistics.drift(logp, l_ref, "l1")
    assert moved <= l1 + EXACT
    assert l1 <= statistics.drift(logp, l_ref) ** 0.5 + EXACT  # so the bound is the tighter one


@settings(max_examples=300, deadline=None)
@given(scored_groups())
def test_weighted_headroom_moves_by_at_most_the_weighted_drift(
    group: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    logp, l_ref, a = group
    moved = abs(statistics.headroom(logp, a, "advantage") - statistics.headroom(l_ref, a, "advantage"))
    mean_square = a.double().square().mean().item()
    assert moved <= a.abs().max().item() * statistics.drift(logp, l_ref, "l1") + EXACT
    assert moved <= (mean_square * statistics.drift(logp, l_ref)) ** 0.5 + EXACT


@settings(max_examples=300, deadline=None)
@given(scored_groups(), scored_groups())
def test_a_certified_order_is_the_current_order(
    g: tuple[torch.Tensor, torch.Tensor, torch.Tensor], h: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    stored = [statistics.headroom(l_ref, a) for _, l_ref, a in (g, h)]
    now = [statistics.headroom(logp, a) for logp, _, a in (g, h)]
    slack = sum(statistics.drift(logp, l_ref) ** 0.5 for logp, l_ref, _ in (g, h))
    slack_l1 = sum(statistics.drift(logp, l_ref, "l1") for logp, l_ref, _ in (g, h))
    if stored[0] - stored[1] > min(slack, slack_l1) + EXACT:
        assert now[0] > now[1]


@settings(max_examples=100, deadline=None)
@given(scored_groups())
def test_headroom_equals_the_one_the_actor_computes(group: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    logp, _, advantages = group
    for form in ("sign", "advantage"):
        theirs = numpy_headroom(logp.numpy(), advantages.numpy(), form)
        assert statistics.headroom(logp, advantages, form) == pytest.approx(theirs, abs=1e-6)
    signs = np.sign(advantages.numpy())
    assert statistics.headroom(logp, advantages) == pytest.approx(numpy_headroom(logp.numpy(), signs), abs=1e-6)


def test_a_record_holds_the_sums_of_its_tokens() -> None:
    p = torch.tensor([0.9, 0.5, 0.2, 0.7])
    p_ref = torch.tensor([0.6, 0.5, 0.4, 0.7])
    advantages = torch.tensor([1.0, 1.0, -0.5, 0.0])
    dead = torch.tensor([True, False, True, False])
    r = statistics.record("g", p.log(), p_ref.log(), advantages, dead)
    d = (p.double().log() - p_ref.double().log()).numpy()
    assert (r.tokens, r.tokens_positive, r.tokens_negative) == (4, 2, 1)
    assert r.mean_p_positive == pytest.approx(0.7)
    assert r.mean_p_negative == pytest.approx(0.2)
    assert r.headroom == pytest.approx((0.1 + 0.5 + 0.2 + 0.0) / 4)
    assert r.sum_d == pytest.approx(d.sum(), abs=1e-6)
    assert r.sum_d2 == pytest.approx((d**2).sum(), abs=1e-6)
    assert r.drift == pytest.approx((d**2).mean(), abs=1e-6)
    assert r.max_abs_d == pytest.approx(np.abs(d).max(), abs=1e-6)
    assert r.k3 == pytest.approx((np.exp(d) - 1 - d).mean(), abs=1e-6)
    assert r.dead_share == 0.5
    assert r.sum_abs_d == pytest.approx(np.abs(d).sum(), abs=1e-6)
    assert r.entropy == pytest.approx(-np.log(p.double().numpy()).mean(), abs=1e-6)


def test_a_record_gives_the_scores_in_the_form_that_is_asked_for() -> None:
    p, p_ref = torch.tensor([0.9, 0.5, 0.2, 0.7]), torch.tensor([0.6, 0.5, 0.4, 0.7])
    advantages, dead = torch.tensor([2.0, 1.0, -0.5, 0.0]), torch.zeros(4, dtype=torch.bool)
    scores = statistics.Scores(drift="l1", headroom="advantage")
    r = statistics.record("g", p.log(), p_ref.log(), advantages, dead, scores)
    d = (p.double().log() - p_ref.double().log()).abs().mean().item()
    assert r.drift == pytest.approx(d, abs=1e-6)
    assert r.headroom == pytest.approx((2 * 0.1 + 0.5 + 0.5 * 0.2 + 0.0) / 4)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(r), type=Record)
    assert read.drift == r.drift  # so replay gates by the same measure


def test_a_certain_token_keeps_the_digits_of_one_minus_p() -> None:
    logp = torch.tensor([-1e-10])
    assert statistics.headroom(logp, torch.ones(1)) == pytest.approx(1e-10, rel=1e-4)
