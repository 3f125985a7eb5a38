"""What the learner says of itself: the metrics of a `trained` message, and the same to Prometheus."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from prometheus_client import Counter, Gauge

from services.learner import drift_noise, engine_gap
from services.learner.clock import PHASES
from services.learner.executor import Learned
from services.learner.groups.group import Group
from services.learner.totals import Totals
from shared.config import Config
from shared.versions import Version

_version = Gauge("headrace_learner_version", "number of the published weights")
_lineage = Gauge("headrace_learner_lineage", "lives of the learner before this one")
_loss = Gauge("headrace_learner_loss", "of the last step")
_grad_norm = Gauge("headrace_learner_grad_norm", "before clipping, of the last step")
_gap = Gauge(
    "headrace_learner_engine_gap", "mean (l_ref - l_gen)^2 of tokens sampled under the weights that trained them"
)
_noise = Gauge(
    "headrace_learner_drift_noise", "mean d^2 of scoring the same tokens twice, cut otherwise, when last measured"
)
_gap_limit = Gauge("headrace_learner_engine_gap_limit", "a tenth of tau, in the gap's measure; 0: no gate")
_STEP_FIGURES = {
    "kl": "k3 to model.kl_reference, with adapters to their base, weighed as in the loss, of the last step",
    "replay_kl": "mean k3 of the replayed groups to their l_ref, of the last step",
    "lr": "learning rate of the last step",
    "entropy": "mean -log p of the trained tokens, of the last step",
    "entropy_fresh": "mean -log p of the fresh groups' tokens, which are the policy's own, of the last step",
    "ratio_mean": "mean p / p_ref of the trained tokens, of the last step",
    "clip_share": "share of trained tokens whose gradient a clip makes zero, of the last step",
}
_figures = {key: Gauge(f"headrace_learner_{key}", text) for key, text in _STEP_FIGURES.items()}
_tokens = Counter("headrace_learner_tokens_trained", "sampled tokens trained on")
_phases = Counter("headrace_learner_phase_seconds", "time by phase", ["phase"])
_idle = Counter("headrace_learner_idle_seconds", "waiting for work: the phase `wait` by itself")
_payload_bytes = Counter("headrace_learner_payload_bytes", "payloads read from Redis")
_left_out = Counter("headrace_learner_updates_left_out", "updates whose gradient was not finite")
_dead_letters = Counter("headrace_learner_dead_letters", "groups and messages refused")


def step_metrics(done: Learned, version: Version, config: Config) -> dict[str, float]:
    """The learning side of one step, which `version` was trained in.

    `engine_gap` covers tokens sampled under exactly `version` and is left out when there are none; `reference_gap`
    covers all fresh tokens, so at lag it also holds what the policy moved.
    """
    totals, records, replayed = done.totals, done.records, len(done.replay.groups)
    tokens = max(totals.tokens, 1)
    own = records[replayed:]
    out = {
        "loss": _mean(totals.losses),
        "kl": _mean(totals.kls),
        "ratio_mean": totals.ratio / tokens if totals.tokens else 1.0,
        "clip_share": totals.dead / tokens,
        "grad_norm": _mean(totals.norms),
        "lr": totals.lr,
        "tokens_trained": float(totals.tokens),
        "replay_kl": _mean([r.k3 for r in records[:replayed]]),
        "entropy": sum(r.entropy * r.tokens for r in records) / tokens,
        "entropy_fresh": sum(r.entropy * r.tokens for r in own) / max(sum(r.tokens for r in own), 1),
        "padding_share": 1.0 - totals.inputs / totals.padded if totals.padded else 0.0,
        "reference_gap": _gap_of(done.fresh.groups, None) or 0.0,
        "updates_left_out": float(totals.left_out),
    }
    gap = _gap_of(done.fresh.groups, version)
    return out if gap is None else out | {"engine_gap": gap, "engine_gap_limit": engine_gap.limit(config)}


def warnings(
    config: Config, step: int, metrics: Mapping[str, float], totals: Totals, told: engine_gap.OnceEach
) -> list[str]:
    """What to tell people of a step's metrics; of those that come near the gate not again what was `told`."""
    texts = [totals.warning(step, config.learner.max_bad_gradients)]
    for key, warning in (("engine_gap", engine_gap.warning), ("drift_noise", drift_noise.warning)):
        figure = metrics.get(key, 0.0)
        text = warning(config, figure)
        if text and told.is_news(key, figure):
            texts.append(text)
    return [text for text in texts if text]


def export(metrics: Mapping[str, float], version: Version, dead_letters: int) -> None:
    """Prometheus, after a step; dead_letters: since the last one."""
    announce(version)
    _loss.set(metrics["loss"])
    _grad_norm.set(metrics["grad_norm"])
    for key, gauge in _figures.items():
        gauge.set(metrics[key])
    if "engine_gap" in metrics:
        _gap.set(metrics["engine_gap"])
    if "drift_noise" in metrics:
        _noise.set(metrics["drift_noise"])
    _tokens.inc(metrics["tokens_trained"])
    for phase in PHASES:
        _phases.labels(phase).inc(metrics[f"{phase}_s"])
    _idle.inc(metrics["wait_s"])
    _left_out.inc(metrics["updates_left_out"])
    _payload_bytes.inc(metrics["payload_bytes_read"])
    _dead_letters.inc(dead_letters)


def announce_limit(config: Config) -> None:
    """Prometheus, beside what a step's gap is read."""
    _gap_limit.set(engine_gap.limit(config))


def announce(version: Version) -> None:
    """Prometheus, when a version is published."""
    _version.set(version.number)
    _lineage.set(version.lineage)


def _gap_of(fresh: Iterable[Group], version: Version | None) -> float | None:
    squares = []
    for group in fresh:
        assert group.l_ref is not None
        gap = (group.l_ref - group.l_gen).double().square()
        squares.append(gap if version is None else gap[group.sampled_under(version)])
    every = torch.cat(squares) if squares else torch.empty(0)
    return every.mean().item() if len(every) else None


def _mean(values: Sequence[float]) -> float:
    """Of those that are finite: what an update that was left out came to says nothing."""
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else 0.0
