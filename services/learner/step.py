"""One training step and one scan (docs/method.md, sections 3 and 5), on groups that are already in memory.

batch = [replay in order ; fresh in order], cut in order into mini-batches of one optimiser step each
l_ref of a fresh group: log p under the weights that first train on it. Groups of the first mini-batch take it from
their training forward, which runs under those weights; the others need a forward before the first update. So it is
with l_start, log p of every group at the start of the step, which is only needed where clipping is decoupled.

Several ranks each hold groups of their own of every mini-batch, and add up one gradient: weights are scaled to the
whole, and a rank with fewer micro-batches runs an idle row for each that it lacks, since all run a layer at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from services.learner import losses, statistics
from services.learner.clock import Clock
from services.learner.groups.group import Group, Row
from services.learner.losses.denominators import per_token
from services.learner.model.batching import Flat, flat_index, flatten, micro_batches, mini_batches, tokens_read
from services.learner.model.optimise import Optimiser
from services.learner.model.policy import device_of, is_packed, logprobs, shares_prompts
from services.learner.ranks.members import ALONE, Ranks
from services.learner.statistics import Scores
from services.learner.stop import Stop
from services.learner.totals import Totals
from shared import malloc
from shared.errors import UserError
from shared.messages import Record
from shared.settings import Learner

NOISE_GROUPS, NOISE_CUTS = 2, 4  # of a scan: groups that are scored again, and into how many cuts then
_IDLE = Row(np.zeros(2, np.int64), np.ones(1, np.int64), 0)


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
    scores: Scores = field(default_factory=Scores)
    ranks: Ranks = ALONE

    @property
    def loss(self) -> losses.Loss:
        """The loss that the settings name."""
        return losses.LOSSES[self.settings.loss]

    @property
    def clip(self) -> losses.Clip:
        """Its clip range."""
        return losses.Clip(self.settings.clip_low, self.settings.clip_high, self.settings.dual_clip)


@dataclass(frozen=True)
class Measured:
    """log p of tokens as they were trained or scanned, float32[T] each, beside what it is compared with."""

    logp: Tensor
    l_ref: Tensor
    l_old: Tensor  # what the ratio is taken to


def train_step(
    trainer: Trainer,
    step: int,
    replay: Sequence[Group],
    fresh: Sequence[Group],
    batches: Sequence[Sequence[Group]] | None = None,
) -> tuple[list[Record], Totals]:
    """Move the weights by one batch; records of all its groups, in order. Sets `l_ref` of the fresh ones.

    batches: with several ranks, what of each mini-batch is this rank's; otherwise they are cut here.

    A mini-batch whose gradient is not finite moves nothing: `Totals.left_out`. Raises UserError when too many in a row
    were like that, or the weights give no finite log-probabilities; the weights are then no longer those of a step.
    """
    if batches is None:
        batches = mini_batches([*replay, *fresh], trainer.settings.mini_batch)
    with trainer.clock("reference"):
        starts = _before_the_first_update(trainer, replay, fresh, later=[g for batch in batches[1:] for g in batch])
    stored = {g.id for g in replay}
    records: list[Record] = []
    totals = Totals()
    with trainer.clock("train"):
        for batch in batches:
            flat = flatten(batch, device_of(trainer.model))
            replayed = _tokens_of(flat, stored)
            measured = _accumulate(trainer, step, flat, replayed, starts, totals)
            trainer.ranks.add_up(master.grad for master in trainer.optimiser.masters)
            norm, totals.lr = trainer.optimiser.step(step)
            totals.norms.append(norm)
            records += _records(trainer, flat, measured, replayed)
        malloc.give_back(step)
    is_fresh = {g.id: g for g in fresh}
    place = {g.id: i for i, g in enumerate([*replay, *fresh])}  # what joins a group was trained beside it
    records.sort(key=lambda r: place[r.id])
    return [_with_reference(r, is_fresh[r.id], trainer.scores) if r.id in is_fresh else r for r in records], totals


@torch.no_grad()
def scan(trainer: Trainer, groups: Sequence[Group], per_rollout: bool = False, noise: bool = False) -> list[Record]:
    """Records of stored groups under the current weights, in order; with the entropy of each rollout if wanted, and
    with the noise of scoring the first of them again.
    """
    if trainer.ranks.most(len(groups)) == 0:
        return []
    flat = flatten(groups, device_of(trainer.model))
    logp = forward(trainer, flat)
    l_ref = flat.l_gen if trainer.settings.reference == "engine" else flat.l_ref
    l_old = logp if trainer.settings.proximal_cap else l_ref
    records = _records(trainer, flat, Measured(logp, l_ref, l_old), _tokens_of(flat, {g.id for g in groups}))
    if noise:
        records[:NOISE_GROUPS] = _with_noise(trainer, groups[:NOISE_GROUPS], logp, records)
    if not per_rollout:
        return records
    spans = [logp[a:b].cpu() for a, b in flat.bounds]
    return [statistics.with_entropies(r, g, span) for r, g, span in zip(records, groups, spans, strict=True)]


def _with_noise(trainer: Trainer, groups: Sequence[Group], logp: Tensor, records: list[Record]) -> list[Record]:
    """Records of these groups, with mean d^2 between `logp` and their log p in other cuts, at least NOISE_CUTS."""
    flat = flatten(groups, logp.device)
    tokens = max(1, sum(row.inputs for row in flat.rows) // NOISE_CUTS)
    otherwise = replace(trainer, settings=trainer.settings.model_copy(update={"micro_tokens": tokens}))
    squares = (forward(otherwise, flat) - logp[: flat.tokens]).double().square()
    means = [squares[a:b].mean().item() for a, b in flat.bounds]
    return [msgspec.structs.replace(r, noise=mean) for r, mean in zip(records, means, strict=False)]


@torch.no_grad()
def forward(trainer: Trainer, flat: Flat) -> Tensor:
    """log p of every trained token, float32[T]."""
    out = torch.empty_like(flat.l_gen)
    for rows in _cuts(trainer, flat):
        trainer.stop.check()
        logp = logprobs(trainer.model, rows or [_IDLE], trainer.temperature)
        if rows:
            out[flat_index(rows).to(out.device)] = logp
    return out


def _before_the_first_update(
    trainer: Trainer, replay: Sequence[Group], fresh: Sequence[Group], later: list[Group]
) -> dict[str, Tensor]:
    """Set l_ref of the fresh groups that are trained `later`; l_start of all that are, by id, where it is needed.

    Groups of the first mini-batch are left without: `_accumulate` takes both from its own forward.
    """
    s = trainer.settings
    for group in [*replay, *fresh] if s.reference == "engine" else fresh:
        group.l_ref = group.l_gen if s.reference == "engine" else None
    wanted = [g for g in later if s.proximal_cap or g.l_ref is None]
    if trainer.ranks.most(len(wanted)) == 0:
        return {}
    flat = flatten(wanted, device_of(trainer.model))
    logp = forward(trainer, flat)
    _keep_reference(flat, logp)
    return {g.id: logp[a:b] for g, (a, b) in zip(wanted, flat.bounds, strict=True)} if s.proximal_cap else {}


def _accumulate(
    trainer: Trainer, step: int, flat: Flat, replayed: Tensor, starts: dict[str, Tensor], totals: Totals
) -> Measured:
    """The gradient of one mini-batch, micro-batch by micro-batch."""
    s, device = trainer.settings, flat.l_gen.device
    weights = trainer.loss.weights(flat.rollout, flat.group_of_rollout, s.denominator_tokens, flat.share)
    if trainer.ranks.count > 1:
        weights = weights * trainer.ranks.share(flat.tokens if trainer.loss.weights is per_token else flat.mass)
    out = Measured(torch.empty_like(flat.l_gen), flat.l_ref, torch.empty_like(flat.l_gen))
    l_start = flat.over(lambda g: starts.get(g.id, torch.full_like(g.l_gen, torch.nan)))
    loss_sum = kl_sum = 0.0
    for rows in _cuts(trainer, flat):
        trainer.stop.check()
        if not rows:
            _idle(trainer)
            continue
        at = flat_index(rows).to(device)
        logp = logprobs(trainer.model, rows, trainer.temperature)
        l_ref = _or_now(out.l_ref[at], logp)
        factors = losses.importance_weights(l_ref, flat.l_gen[at], s.tis_cap)
        l_old = l_ref
        if s.proximal_cap:
            l_old = _or_now(l_start[at], logp)
            factors = factors * losses.truncated(l_old, l_ref, s.proximal_cap)
        tokens = losses.Tokens(logp, l_old, flat.advantages[at], flat.rollout[at])
        w = weights[at]
        loss = losses.value(trainer.loss, tokens, w, factors, trainer.clip, replayed[at], s.replay_shaping)
        if trainer.frozen is not None:
            with torch.no_grad():
                l_frozen = logprobs(trainer.frozen, rows, trainer.temperature)
            kl = (w * losses.kl_k3(logp, l_frozen)).sum()
            loss, kl_sum = loss + s.kl * kl, kl_sum + kl.item()
        loss.backward()
        trainer.optimiser.accumulate()
        loss_sum += loss.item()
        out.logp[at], out.l_ref[at], out.l_old[at] = logp.detach(), l_ref, l_old
        totals.padded += tokens_read(rows, packed=is_packed(trainer.model))
        totals.inputs += sum(row.inputs for row in rows)
    if not torch.isfinite(out.logp).all():
        raise UserError(f"the weights of step {step} give log-probabilities that are not finite: lower learner.lr.")
    _keep_reference(flat, out.l_ref)
    totals.losses.append(loss_sum)
    totals.kls.append(kl_sum)
    totals.tokens += flat.tokens
    totals.ratio += losses.ratio(out.logp, out.l_ref).double().sum().item()
    totals.dead += _dead(trainer, flat, out, replayed).sum().item()
    return out


def _cuts(trainer: Trainer, flat: Flat) -> list[list[Row]]:
    """The micro-batches, as many on every rank: the last ones may be empty."""
    model, tokens = trainer.model, trainer.settings.micro_tokens
    cuts = list(micro_batches(flat.rows, tokens, packed=is_packed(model), sharing=shares_prompts(model)))
    return cuts + [[]] * (trainer.ranks.most(len(cuts)) - len(cuts))


def _idle(trainer: Trainer) -> None:
    """Run the layers beside the other ranks, in their order, and add nothing to the gradient."""
    logp = logprobs(trainer.model, [_IDLE], trainer.temperature)
    if trainer.frozen is not None:
        with torch.no_grad():
            logprobs(trainer.frozen, [_IDLE], trainer.temperature)
    (0.0 * logp).sum().backward()
    trainer.optimiser.accumulate()


def _or_now(stored: Tensor, logp: Tensor) -> Tensor:
    """What is stored, and log p as it is now where nothing is."""
    return torch.where(stored.isnan(), logp.detach(), stored)


def _tokens_of(flat: Flat, ids: set[str]) -> Tensor:
    """Which tokens belong to these groups, bool[T]."""
    return flat.over(lambda g: torch.full_like(g.rollout, g.id in ids, dtype=torch.bool)).bool()


def _keep_reference(flat: Flat, l_ref: Tensor) -> None:
    on_cpu = l_ref.cpu()
    for group, (start, end) in zip(flat.groups, flat.bounds, strict=True):
        if group.l_ref is None:
            group.l_ref = on_cpu[start:end].clone()


def _dead(trainer: Trainer, flat: Flat, measured: Measured, replayed: Tensor) -> Tensor:
    tokens = losses.Tokens(measured.logp, measured.l_old, flat.advantages, flat.rollout)
    return losses.dead(trainer.loss, tokens, trainer.clip, replayed, trainer.settings.replay_shaping)


def _records(trainer: Trainer, flat: Flat, measured: Measured, replayed: Tensor) -> list[Record]:
    dead = _dead(trainer, flat, measured, replayed).cpu()
    logp, l_ref, advantages = measured.logp.cpu(), measured.l_ref.cpu(), flat.advantages.cpu()
    return [
        statistics.record(group.id, logp[a:b], l_ref[a:b], advantages[a:b], dead[a:b], trainer.scores)
        for group, (a, b) in zip(flat.groups, flat.bounds, strict=True)
    ]


def _with_reference(record: Record, group: Group, scores: Scores) -> Record:
    assert group.l_ref is not None
    return msgspec.structs.replace(
        record,
        headroom_ref=statistics.headroom(group.l_ref, group.advantages, scores.headroom),
        engine_gap=statistics.drift(group.l_ref, group.l_gen),
    )
