"""The losses of docs/method.md token by token in plain Python, with gradients worked out by hand; no code is shared.

A batch is a list of groups, a group a list of rollouts, a rollout a list of tokens (empty: masked out whole).
"""

import math
from dataclasses import dataclass, replace
from itertools import count

import numpy as np


@dataclass(frozen=True)
class Token:
    logp: float
    l_ref: float
    l_gen: float
    l_start: float
    advantage: float
    replayed: bool


Group = list[list[Token]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A loss with its options; 0 is off."""

    name: str
    low: float = 0.2
    high: float = 0.28
    dual: float = 0.0
    tis_cap: float = 2.0
    proximal_cap: float = 0.0
    shaping: float = 0.0
    constant: int = 16


def ragged(seed: int) -> list[Group]:
    """Groups of 1 to 6 rollouts of 0 to 8 tokens, ratios around the clip; the first replayed, the last all equal."""
    rng = np.random.default_rng(seed)
    groups: list[Group] = []
    total = int(rng.integers(2, 6))
    for g in range(total):
        spread = float(g != total - 1)
        rollouts = []
        for i in range(rng.integers(1, 7)):
            length = int(rng.integers(1 if i == 0 else 0, 9))
            advantage = float(rng.normal()) * spread * float(rng.random() > 0.1)
            shift = rng.normal() * 0.3
            rollouts.append([token(rng, advantage, g < total // 2, shift) for _ in range(length)])
        groups.append(rollouts)
    return groups


def token(rng: np.random.Generator, advantage: float, replayed: bool, shift: float) -> Token:
    logp = -float(rng.exponential())
    l_ref = logp + shift + float(rng.normal()) * 0.3
    l_gen, l_start = l_ref + float(rng.normal()) * 0.5, l_ref + float(rng.normal()) * 0.3
    return Token(logp, l_ref, l_gen, l_start, advantage, replayed)


def literal(groups: list[Group], rule: Rule, held: list[Group] | None = None) -> tuple[float, list[float]]:
    """(loss, d loss / d logp of each token in order). `held`: where a weight without gradient takes its log p from."""
    there = [g for g in groups if any(g)]
    tokens = sum(len(r) for g in there for r in g)
    loss, gradient = 0.0, []
    for group, held_group in zip(groups, held or groups, strict=True):
        responses = sum(bool(r) for r in group)
        for rollout, held_rollout in zip(group, held_group, strict=True):
            share = share_of(rule, len(there), responses, len(rollout), tokens) if rollout else 0.0
            value, slopes = of_rollout(rollout, rule, held_rollout)
            loss -= share * value
            gradient += [-share * s for s in slopes]
    return loss, gradient


def share_of(rule: Rule, groups: int, responses: int, length: int, tokens: int) -> float:
    """Of one token of a response of this length, in a group of so many responses."""
    if rule.name in ("dapo", "cispo"):
        return 1 / tokens
    return 1 / (groups * responses * (rule.constant if rule.name == "dr_grpo" else length))


def of_rollout(rollout: list[Token], rule: Rule, held: list[Token]) -> tuple[float, list[float]]:
    """Sum over the tokens of factor x objective, and its slope in each log p."""
    value, slopes = 0.0, [0.0] * len(rollout)
    if not rollout:
        return value, slopes
    if rule.shaping and rollout[0].replayed:
        for i, t in enumerate(rollout):
            rho, c = math.exp(t.logp - old(t, rule)), rule.shaping
            value += factor(t, rule) * rho / (rho + c) * t.advantage
            slopes[i] = factor(t, rule) * t.advantage * c * rho / (rho + c) ** 2
    elif rule.name == "gspo":
        n = len(rollout)
        s = math.exp(sum(t.logp - old(t, rule) for t in rollout) / n)
        objective, slope = clipped(s, rollout[0].advantage, rule)
        factors = sum(factor(t, rule) for t in rollout)
        value = factors * objective
        slopes = [factors * slope * s / n] * n
    else:
        for i, (t, h) in enumerate(zip(rollout, held, strict=True)):
            rho = math.exp(t.logp - old(t, rule))
            if rule.name == "cispo":
                weight = min(max(math.exp(h.logp - old(t, rule)), 1 - rule.low), 1 + rule.high)
                value += factor(t, rule) * weight * t.advantage * t.logp
                slopes[i] = factor(t, rule) * weight * t.advantage
            else:
                objective, slope = clipped(rho, t.advantage, rule)
                value += factor(t, rule) * objective
                slopes[i] = factor(t, rule) * slope * rho
    return value, slopes


def clipped(ratio: float, a: float, rule: Rule) -> tuple[float, float]:
    """The clipped objective and its slope in the ratio."""
    inside = min(max(ratio, 1 - rule.low), 1 + rule.high)
    objective, slope = (ratio * a, a) if ratio * a <= inside * a else (inside * a, 0.0)
    if rule.dual and a < 0 and objective < rule.dual * a:
        return rule.dual * a, 0.0
    return objective, slope


def old(t: Token, rule: Rule) -> float:
    return t.l_start if rule.proximal_cap else t.l_ref


def factor(t: Token, rule: Rule) -> float:
    out = min(math.exp(t.l_ref - t.l_gen), rule.tis_cap) if rule.tis_cap else 1.0
    return out * min(math.exp(t.l_start - t.l_ref), rule.proximal_cap) if rule.proximal_cap else out


def nudged(groups: list[Group], place: int, by: float) -> list[Group]:
    """The same with the log p of one token moved."""
    number = count()
    return [[[replace(t, logp=t.logp + by * (next(number) == place)) for t in r] for r in g] for g in groups]
