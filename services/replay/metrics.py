"""Prometheus metrics of the replay service."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import redis
import redis.asyncio
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.replay.records import Composed
from services.replay.state import State
from shared.messages import GroupHeader, Record
from shared.metrics import RedisWait
from shared.round_trip import RoundTrip
from shared.streams import Keys

_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_DRIFTS = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)


_TOTALS = (
    "generated",
    "trained",
    "trained_twice",
    "replayed",
    "mixed",
    "lost",
    "filtered",
    "regenerated",
    "failed",
    "rejected",
    "duplicates",
    "evicted",
)


class Totals(Collector):
    """A counter whose values are those of the durable state, so that a restart of replay resets none."""

    def __init__(self, name: str, documentation: str, *labels: str) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self.values: Mapping[tuple[str, ...], float] = {}

    def collect(self) -> Iterator[Metric]:
        """For Prometheus."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        yield family


class ReplayMetrics:
    """All series of the service, set from the state so that a restart shows the truth at once."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        p = "headrace_replay_"
        self.step = gauge(p + "step", "the next step to be trained")
        self.version = gauge(p + "learner_version", "the number of the published version")
        self.buffer = gauge(p + "buffer_groups", "stored groups")
        self.fresh = gauge(p + "fresh_groups", "arrived groups that are not trained yet")
        self.running = gauge(p + "tasks_running", "tasks issued and not answered")
        self.payload = gauge(p + "payload_bytes", "payloads and l_ref in Redis")
        self.totals = Totals(p + "run_groups", "groups of the run so far, by what became of them", "what")
        self.dead_letters = Totals(p + "dead_letters", "entries ever refused by any service of the run")
        registry.register(self.totals)
        registry.register(self.dead_letters)
        self.acceptance = gauge(p + "acceptance_ratio", "accepted of the scanned groups, last step")
        self.tau = gauge(p + "tau", "the gate on Drift, last step")
        self.lag = gauge(p + "lag_versions", "age of the oldest sampled token in the last batch")
        self.lag_mean = gauge(
            p + "lag_mean_versions", "mean age of the oldest sampled token over the last batch's groups"
        )
        self.age = histogram(p + "replay_age_steps", "age of replayed groups", buckets=(1, 2, 3, 4, 6, 8, 12, 16, 32))
        self.headroom = histogram(p + "headroom", "Headroom of stored groups as scanned", buckets=_SHARES)
        self.drift = histogram(p + "drift", "Drift of stored groups as scanned", buckets=_DRIFTS)
        self.what_if = gauge(p + "what_if_acceptance_ratio", "acceptance at a multiple of tau, last step", ["factor"])
        self.selection = histogram(
            p + "selection_seconds",
            "time to order and gate one step",
            buckets=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
        )
        self.scan_exposed = counter(
            p + "scan_exposed_seconds", "time that the learner scanned and batches waited for it alone"
        )
        self.selection_wait = counter(
            p + "selection_wait_seconds",
            "time that batches waited for their selection alone: scans, and the ways there and back",
        )
        self.reward = gauge(p + "reward_mean", "mean reward of the last batch's fresh groups")
        self.reward_part = gauge(
            p + "reward_part_mean", "mean of each part of the reward of the last batch's fresh groups", ["part"]
        )
        self.correct = gauge(p + "correct_ratio", "share of right answers in the last batch's fresh groups")
        self.response_mean = gauge(p + "response_mean_tokens", "mean sampled tokens of the last batch's fresh rollouts")
        self.response_p90 = gauge(
            p + "response_p90_tokens", "90th percentile of sampled tokens of the last batch's fresh rollouts"
        )
        self.response_clipped = gauge(
            p + "response_clipped_ratio", "share of the last batch's fresh rollouts that a limit cut off"
        )
        self.timed_out = gauge(p + "timed_out_ratio", "share of the last batch's fresh rollouts cut by the deadline")
        self.groups = counter(p + "groups_received", "groups received from actors", ["kind", "outcome"])
        self.window_reads = counter(p + "window_payload_reads", "payloads passed on to the replay window, unread here")
        self.max_lag = gauge(p + "max_lag_versions", "replay.max_lag: the bound on lag")
        self.steps = gauge(p + "run_steps", "steps of the whole run")
        self.waiting = gauge(p + "waiting_seconds", "how long nothing has happened; 0 once the run is finished")
        self.waiting_limit = gauge(
            p + "waiting_limit_seconds", "how long nothing may happen: twice what the run's own steps take"
        )
        self.redis_memory = gauge(p + "redis_memory_bytes", "memory that Redis uses")
        self.redis_limit = gauge(p + "redis_memory_limit_bytes", "maxmemory of Redis; 0: no limit")
        self.live_actors = gauge(p + "live_actors", "actors that report")
        self.silent_actors = gauge(p + "silent_actors", "actors that stopped reporting without signing off")
        self.learner_silent = gauge(p + "learner_silent_seconds", "how long the learner has said nothing; 0: it speaks")
        self.redis_wait = RedisWait("replay", registry)
        self.round_trip = RoundTrip("replay", registry)
        self.reconnects = counter(p + "redis_reconnects", "times the state was loaded again after Redis failed")

    def group(self, header: GroupHeader) -> None:
        """A group was filed."""
        self.groups.labels(header.kind, "usable" if header.usable else "failed").inc()

    def batch(self, batch: Composed, measured: Iterable[Record]) -> None:
        """A batch was sent, after these groups had been scanned."""
        for record in measured:
            self.headroom.observe(record.headroom)
            self.drift.observe(record.drift)
        s = batch.stats
        for gauge, key in (
            (self.acceptance, "acceptance"),
            (self.reward, "reward_mean"),
            (self.correct, "correct_share"),
            (self.response_mean, "response_tokens_mean"),
            (self.response_p90, "response_tokens_p90"),
            (self.response_clipped, "response_clipped_share"),
            (self.timed_out, "timed_out_share"),
        ):
            if s[key] is not None:
                gauge.set(s[key])
        self.reward_part.clear()  # a part that no rollout has any more
        for part, mean in s["reward_parts"].items():
            self.reward_part.labels(part).set(mean)
        self.tau.set(s["tau"])
        self.lag.set(s["lag_max"])
        self.lag_mean.set(s["lag_mean"])
        self.selection.observe(s["selection_ms"] / 1000)
        self.scan_exposed.inc(s["scan_exposed_s"])
        self.selection_wait.inc(s["selection_wait_s"])
        for age in s["ages"]:
            self.age.observe(age)
        for factor, share in s["what_if_tau"].items():
            self.what_if.labels(factor).set(share)

    def configured(self, max_lag: int, steps: int) -> None:
        """What the configuration fixes, beside which the rest is read."""
        self.max_lag.set(max_lag)
        self.steps.set(steps)

    async def look(self, client: redis.asyncio.Redis, keys: Keys, waiting_s: float, limit_s: float) -> None:
        """What only the server knows; asked every few seconds."""
        memory: Any = await client.info("memory")
        self.redis_memory.set(memory["used_memory"])
        self.redis_limit.set(memory["maxmemory"])
        self.dead_letters.values = {(): await _ever_added(client, keys.dead)}
        self.waiting.set(waiting_s)
        self.waiting_limit.set(limit_s)

    def others(self, alive: int, silent: int, learner_silent_s: float) -> None:
        """How many actors report, how many have stopped, and for how long the learner has not spoken."""
        self.live_actors.set(alive)
        self.silent_actors.set(silent)
        self.learner_silent.set(learner_silent_s)

    def show(self, state: State) -> None:
        """Set the gauges that follow the state."""
        c = state.counters
        self.step.set(c.step)
        self.version.set(c.version.number if c.version else -1)
        self.buffer.set(len(state.buffer))
        self.fresh.set(len(state.fresh))
        self.running.set(len(state.tasks))
        self.payload.set(state.payload_bytes)
        self.totals.values = {(what,): getattr(c, what) for what in _TOTALS}


async def _ever_added(client: redis.asyncio.Redis, stream: str) -> int:
    """Entries that were ever added to a stream, also when it is full and an old one goes for each new one."""
    try:
        about: Any = await client.xinfo_stream(stream)
    except redis.ResponseError:  # no such key
        return 0
    return about.get("entries-added", about["length"])  # counted by Redis 7.0 and later
