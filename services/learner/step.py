"""One training step and one scan (method.md, sections 3 and 6), on groups that are already in memory.

batch = [replay in order ; fresh in order], cut in order into mini-batches of one optimiser step each
l_ref of a fresh group: log p under the weights that first train on it. Groups of the first mini-batch take it from
their training forward, which runs under those weights; the others need a forward before the first update.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor

from services.learner import loss as losses
from services.learner import statistics
from services.learner.batching import Flat, flat_index, flatten, micro_batches, mini_batches, padded_tokens
from services.learner.clock import Clock
from services.learner.groups import Group
from services.learner.optimise import Optimiser
from services.learner.policy import logprobs
from services.learner.stop import Stop
from shared.errors import UserError
from shared.messages import Record
from shared.settings import Learner


@dataclass(frozen=True)
class Trainer:
    """What a step works with."""

    model: Any
    frozen: Any  # the model of the KL term, or None
    optimiser: Optimiser
    settings: Learner
    temperature: float
    clock: Clock
    stop: Stop


@dataclass
class Totals:
    """Sums over the step's mini-batches, behind the metrics."""

    losses: list[float] = field(default_factory=list)
    kls: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    lr: float = 0.0
    ratio: float = 0.0
    dead: float = 0.0
    tokens: int = 0
    padded: int = 0
    inputs: int = 0


def train_step(
    trainer: Trainer, step: int, replay: Sequence[Group], fresh: Sequence[Group]
) -> tuple[list[Record], Totals]:
    """Move the weights by one batch; records of all its groups, in order. Sets `l_ref` of the fresh ones.

    Raises UserError when the loss or its gradient is not finite; the weights are then no longer those of a step.
    """
    batches = mini_batches([*replay, *fresh], trainer.settings.mini_batch)
    with trainer.clock("reference"):
        _set_references(trainer, replay, fresh, first=batches[0] if batches else [])
    records: list[Record] = []
    totals = Totals()
    with trainer.clock("train"):
        for batch in batches:
            flat = flatten(batch, _device(trainer.model))
            logp, l_ref = _accumulate(trainer, step, flat, totals)
            norm, totals.lr = trainer.optimiser.step(step)
            totals.norms.append(norm)
            records += _records(trainer.settings, flat, logp, l_ref)
    is_fresh = {g.id: g for g in fresh}
    return [_with_reference(r, is_fresh[r.id]) if r.id in is_fresh else r for r in records], totals


@torch.no_grad()
def scan(trainer: Trainer, groups: Sequence[Group]) -> list[Record]:
    """Records of stored groups under the current weights, in order."""
    if not groups:
        return []
    flat = flatten(groups, _device(trainer.model))
    logp = forward(trainer, flat)
    l_ref = flat.l_gen if trainer.settings.reference == "engine" else _stored_reference(flat)
    return _records(trainer.settings, flat, logp, l_ref)


@torch.no_grad()
def forward(trainer: Trainer, flat: Flat) -> Tensor:
    """log p of every trained token, float32[T]."""
    out = torch.empty_like(flat.l_gen)
    for rows in micro_batches(flat.rows, trainer.settings.micro_tokens):
        trainer.stop.check()
        out[flat_index(rows).to(out.device)] = logprobs(trainer.model, rows, trainer.temperature)
    return out


def _set_references(trainer: Trainer, replay: Sequence[Group], fresh: Sequence[Group], first: list[Group]) -> None:
    """Before the first update. Fresh groups of the first mini-batch are left without: `_accumulate` fills them in."""
    if trainer.settings.reference == "engine":
        for group in [*replay, *fresh]:
            group.l_ref = group.l_gen
        return
    for group in fresh:
        group.l_ref = None
    now = {g.id for g in first}
    later = [g for g in fresh if g.l_ref is None and g.id not in now]
    if later:
        flat = flatten(later, _device(trainer.model))
        _keep_reference(flat, forward(trainer, flat))


def _accumulate(trainer: Trainer, step: int, flat: Flat, totals: Totals) -> tuple[Tensor, Tensor]:
    """The gradient of one mini-batch, micro-batch by micro-batch; (log p, l_ref) of its tokens, float32[T] each."""
    s, device = trainer.settings, flat.l_gen.device
    weights = losses.token_weights(flat.rollout, flat.group_of_rollout)
    all_logp, all_ref = torch.empty_like(flat.l_gen), _stored_reference(flat)
    loss_sum = kl_sum = 0.0
    for rows in micro_batches(flat.rows, s.micro_tokens):
        trainer.stop.check()
        at = flat_index(rows).to(device)
        logp = logprobs(trainer.model, rows, trainer.temperature)
        stored = all_ref[at]
        l_ref = torch.where(stored.isnan(), logp.detach(), stored)
        a, w = flat.advantages[at], weights[at]
        importance = losses.importance_weights(l_ref, flat.l_gen[at], s.tis_cap)
        loss = losses.grpo(logp, l_ref, a, w, importance, clip_low=s.clip_low, clip_high=s.clip_high)
        if trainer.frozen is not None:
            with torch.no_grad():
                l_frozen = logprobs(trainer.frozen, rows, trainer.temperature)
            kl = (w * losses.kl_k3(logp, l_frozen)).sum()
            loss, kl_sum = loss + s.kl * kl, kl_sum + kl.item()
        loss.backward()
        trainer.optimiser.accumulate()
        loss_sum += loss.item()
        all_logp[at], all_ref[at] = logp.detach(), l_ref
        totals.padded += padded_tokens(rows)
        totals.inputs += sum(row.inputs for row in rows)
    if not torch.isfinite(all_logp).all():
        raise UserError(f"the weights of step {step} give log-probabilities that are not finite: lower learner.lr.")
    _keep_reference(flat, all_ref)
    totals.losses.append(loss_sum)
    totals.kls.append(kl_sum)
    totals.tokens += flat.tokens
    totals.ratio += (all_logp - all_ref).clamp(max=losses.MAX_LOG_RATIO).double().exp().sum().item()
    totals.dead += (
        losses.dead(all_logp, all_ref, flat.advantages, clip_low=s.clip_low, clip_high=s.clip_high).sum().item()
    )
    return all_logp, all_ref


def _stored_reference(flat: Flat) -> Tensor:
    """l_ref, float32[T]; NaN where the group has none yet."""
    parts = [g.l_ref if g.l_ref is not None else torch.full_like(g.l_gen, torch.nan) for g in flat.groups]
    return torch.cat(parts).to(flat.l_gen.device)


def _keep_reference(flat: Flat, l_ref: Tensor) -> None:
    on_cpu = l_ref.cpu()
    for group, (start, end) in zip(flat.groups, flat.bounds, strict=True):
        if group.l_ref is None:
            group.l_ref = on_cpu[start:end].clone()


def _records(s: Learner, flat: Flat, logp: Tensor, l_ref: Tensor) -> list[Record]:
    logp, l_ref, advantages = logp.cpu(), l_ref.cpu(), flat.advantages.cpu()
    clip = {"clip_low": s.clip_low, "clip_high": s.clip_high}
    return [
        statistics.record(group.id, logp[a:b], l_ref[a:b], advantages[a:b], **clip)
        for group, (a, b) in zip(flat.groups, flat.bounds, strict=True)
    ]


def _with_reference(record: Record, group: Group) -> Record:
    assert group.l_ref is not None
    return msgspec.structs.replace(
        record,
        headroom_ref=statistics.headroom(group.l_ref, group.advantages),
        engine_gap=statistics.drift(group.l_ref, group.l_gen),
    )


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device
