"""Writes dashboards/*.json: `python deploy/grafana/make_dashboards.py`. What is shown is decided here alone."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "headrace-prometheus"}  # provisioning/datasources
WIDTH = 24  # of a dashboard, in Grafana's grid


@dataclass(frozen=True)
class Panel:
    """`series`: legend -> expression. `kind`: Grafana's name of the visualisation."""

    title: str
    series: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    help: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def rate(name: str, by: str = "") -> str:
    """Per second, summed."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({name}[$__rate_interval]))"


def quantile(q: float, name: str, by: str = "le") -> str:
    """Of a histogram, over the last minutes."""
    return f"histogram_quantile({q}, sum by ({by}) (rate({name}_bucket[5m])))"


def spread(name: str) -> dict[str, str]:
    """The usual three quantiles."""
    return {"median": quantile(0.5, name), "90 %": quantile(0.9, name), "99 %": quantile(0.99, name)}


def first(title: str, series: dict[str, str], unit: str, help: str) -> Panel:
    """One of the four to read first."""
    return Panel(title, series, unit, width=6, height=8, help=help)


def number(title: str, expression: str, unit: str = "short", width: int = 4) -> Panel:
    """A figure as it stands."""
    return Panel(title, {"": expression}, unit, kind="stat", width=width, height=4)


REDIS_WAIT = 'max by (job, why) ({__name__=~"headrace_(actor|replay|learner)_redis_wait_seconds"})'
LOOP_LAG = 'max by (job) ({__name__=~"headrace_.*_event_loop_lag_seconds"})'

DASHBOARDS: dict[str, list[Panel]] = {
    "Overview": [
        first(
            "Learner idle",
            {"waits for work": "headrace:learner_idle:ratio", "for a scan alone": "headrace:scan_exposed:ratio"},
            "percentunit",
            "Share of the learner's time without work. High: more actors; near 0: the learner is the bottleneck.",
        ),
        first(
            "Acceptance",
            {"accepted of scanned": "headrace_replay_acceptance_ratio"},
            "percentunit",
            "Near 0 replay starves, near 1 the gate tells nothing apart: turn replay.tau by decades.",
        ),
        first(
            "Lag",
            {
                "mean": "headrace_replay_lag_mean_versions",
                "largest": "headrace_replay_lag_versions",
                "bound": "headrace_replay_max_lag_versions",
            },
            "short",
            "Versions between sampling and training of fresh groups.",
        ),
        first(
            "Drift",
            {"median of scanned": "headrace:drift:median", "tau": "headrace_replay_tau"},
            "sci",
            "How far the policy has moved from stored groups, and the gate.",
        ),
        number("Step", "headrace_replay_step"),
        number("of", "headrace_replay_run_steps"),
        number("Actors", 'count(up{job="actor"} == 1)'),
        number("Sampled tokens/s", "headrace:sampled_tokens:rate"),
        number("Right answers", "headrace_replay_correct_ratio", "percentunit"),
        number("Nothing happened for", "headrace_replay_waiting_seconds", "s"),
        Panel(
            "Reward",
            {
                "reward": "headrace_replay_reward_mean",
                "right": "headrace_replay_correct_ratio",
                "{{part}}": "headrace_replay_reward_part_mean",
            },
        ),
        Panel("Redis", {"of its limit": "headrace:redis_memory:ratio"}, "percentunit"),
        Panel(
            "Groups, kept or not",
            {
                "{{what}}": 'headrace_replay_run_groups_total{what=~"lost|trained_twice|failed|rejected|duplicates"}',
                "dead letters": "headrace_replay_dead_letters_total",
            },
            help="lost and trained_twice stay 0.",
        ),
        Panel("Targets", {"{{job}}": "sum by (job) (up)"}, width=12),
        Panel("Event loop late by", {"{{job}}": LOOP_LAG}, "s", width=12),
        Panel(
            "Waits for Redis",
            {"{{job}}, {{why}}": REDIS_WAIT},
            "s",
            help="Stays 0. away: it does not answer; memory: it is full; disk: it cannot write its append-only file.",
        ),
        Panel(
            "Waits for what else",
            {
                "replay: nothing has happened": "headrace_replay_waiting_seconds",
                "learner: room on its disk": "headrace_learner_disk_wait_seconds",
                "learner: room in Redis for weights": "headrace_learner_room_wait_seconds",
            },
            "s",
            help="Near 0: a step's length, and 0.",
        ),
        Panel(
            "Rollouts that were not answered or not scored, per second",
            {
                "the retriever did not answer": rate("headrace_actor_env_failures_total"),
                "asked again": rate("headrace_actor_retrieval_retries_total"),
                "the reward failed": rate("headrace_actor_reward_failures_total"),
            },
        ),
    ],
    "Replay": [
        Panel("Headroom of scanned groups", spread("headrace_replay_headroom"), "percentunit"),
        Panel("Drift of scanned groups", spread("headrace_replay_drift") | {"tau": "headrace_replay_tau"}, "sci"),
        Panel("Acceptance", {"accepted of scanned": "headrace_replay_acceptance_ratio"}, "percentunit"),
        Panel("Ages used", spread("headrace_replay_replay_age_steps"), help="Steps; 1 is the newest there is."),
        Panel(
            "What-if tau",
            {"{{factor}} x tau": "headrace_replay_what_if_acceptance_ratio"},
            "percentunit",
            kind="bargauge",
            help="Acceptance of the last step's scans at multiples of tau.",
        ),
        Panel("Selection", spread("headrace_replay_selection_seconds"), "s", help="To order and gate one step."),
        Panel(
            "Groups",
            {
                "stored": "headrace_replay_buffer_groups",
                "fresh": "headrace_replay_fresh_groups",
                "running": "headrace_replay_tasks_running",
            },
        ),
        Panel(
            "Groups per second",
            {"{{kind}}, {{outcome}}": rate("headrace_replay_groups_received_total", "kind, outcome")},
        ),
        Panel("Run so far", {"{{what}}": "headrace_replay_run_groups_total"}),
        Panel(
            "Payloads in Redis",
            {"payloads": "headrace_replay_payload_bytes", "all of Redis": "headrace_replay_redis_memory_bytes"},
            "bytes",
        ),
        Panel("Redis reconnects", {"reconnects": "headrace_replay_redis_reconnects_total"}),
        Panel("Window", {"payloads read": "headrace_replay_window_payload_reads_total"}),
    ],
    "Actors": [
        Panel("Sampled tokens/s", {"{{instance}}": rate("headrace_actor_sampled_tokens_total", "instance")}),
        Panel("Groups per second", {"{{outcome}}": rate("headrace_actor_groups_total", "outcome")}),
        Panel(
            "Groups",
            {
                "running": "sum(headrace_actor_running_groups)",
                "wait for newer weights": "sum(headrace_actor_waiting_groups)",
            },
        ),
        Panel(
            "Responses of a step",
            {"mean": "headrace_replay_response_mean_tokens", "90 %": "headrace_replay_response_p90_tokens"},
        ),
        Panel(
            "Responses cut off by a limit",
            {"share": "headrace_replay_response_clipped_ratio"},
            "percentunit",
            help="A rise says that answers outgrow rollout.max_turn_tokens or max_tokens.",
        ),
        Panel("One turn", spread("headrace_actor_generation_seconds"), "s"),
        Panel("Swap: engine stands still", spread("headrace_actor_swap_seconds"), "s"),
        Panel(
            "Weights version",
            {"{{instance}}": "headrace_actor_weights_version_number", "published": "headrace_replay_learner_version"},
        ),
        Panel(
            "Weights refused, or not there",
            {
                "{{instance}}": "headrace_actor_canary_refusals_total",
                "{{instance}}, not there": "headrace_actor_weights_missing_total",
            },
            help="Stays 0.",
        ),
        Panel(
            "Rollouts cut short",
            {
                "by the environment": "sum(headrace_actor_env_failures_total)",
                "by the deadline": "sum(headrace_actor_timed_out_rollouts_total)",
            },
        ),
        Panel("Redis away", {"{{instance}}": "headrace_actor_redis_outages_total"}),
        Panel("Memory", {"{{instance}}": 'process_resident_memory_bytes{job="actor"}'}, "bytes"),
        Panel("CPU", {"{{instance}}": 'rate(process_cpu_seconds_total{job="actor"}[$__rate_interval])'}, "short"),
    ],
    "Learner": [
        Panel(
            "Time by phase",
            {"{{phase}}": rate("headrace_learner_phase_seconds_total", "phase")},
            "percentunit",
            width=12,
            extra={"stack": True},
        ),
        Panel("Trained tokens/s", {"tokens": rate("headrace_learner_tokens_trained_total")}, width=12),
        Panel("Loss", {"loss": "headrace_learner_loss"}),
        Panel("Gradient norm", {"before clipping": "headrace_learner_grad_norm"}),
        Panel(
            "KL",
            {"of replayed groups": "headrace_learner_replay_kl", "to the frozen model": "headrace_learner_kl"},
            "sci",
            help="Replayed groups: near .002 is calm, a steady climb says that tau is too wide.",
        ),
        Panel(
            "Entropy (mean -log p)",
            {"all trained tokens": "headrace_learner_entropy", "fresh ones": "headrace_learner_entropy_fresh"},
            help="Only of fresh tokens it is the policy's own.",
        ),
        Panel("Ratio", {"mean": "headrace_learner_ratio_mean"}),
        Panel("Dead tokens", {"no gradient for the clip": "headrace_learner_clip_share"}, "percentunit"),
        Panel(
            "Engine gap and noise of Drift",
            {
                "gap": "headrace_learner_engine_gap",
                "noise": "headrace_learner_drift_noise",
                "limit": "headrace_learner_engine_gap_limit",
            },
            "sci",
            help="Both stay below the limit, a tenth of tau, or rounding eats into the gate.",
        ),
        Panel("Version", {"number": "headrace_learner_version", "lineage": "headrace_learner_lineage"}),
        Panel("Learning rate", {"lr": "headrace_learner_lr"}, "sci"),
        Panel("Payloads read", {"bytes/s": rate("headrace_learner_payload_bytes_total")}, "Bps"),
        Panel("Refused", {"dead letters": "headrace_learner_dead_letters_total"}),
        Panel("Memory", {"resident": 'process_resident_memory_bytes{job="learner"}'}, "bytes"),
    ],
    "Retrieval": [
        Panel(
            "Requests/s",
            {
                "requests": rate("headrace_env_search_request_seconds_count"),
                "queries": rate("headrace_env_search_queries_total"),
            },
        ),
        Panel("Time of a request", spread("headrace_env_search_request_seconds"), "s"),
        Panel("Queries searched together", spread("headrace_env_search_batch_queries")),
        Panel(
            "From the cache",
            {
                "share": f"{rate('headrace_env_search_cache_hits_total')} / "
                f"({rate('headrace_env_search_queries_total')} > 0)"
            },
            "percentunit",
        ),
        Panel("Without a result", {"{{kind}}": rate("headrace_env_search_errors_total", "kind")}),
        Panel("Sent again by actors", {"retries": rate("headrace_actor_retrieval_retries_total")}),
        Panel("Documents", {"{{backend}}": "headrace_env_search_documents"}),
        Panel("Event loop late by", {"env_search": "headrace_env_search_event_loop_lag_seconds"}, "s"),
        Panel("Memory", {"{{instance}}": 'process_resident_memory_bytes{job="env-search"}'}, "bytes"),
    ],
}


def dashboard(name: str, panels: list[Panel]) -> dict[str, Any]:
    """Grafana's JSON: panels from left to right, a new line where one does not fit."""
    placed, x, y, tallest = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y, tallest = 0, y + tallest, 0
        placed.append(_panel(number, panel, x, y))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return {
        "uid": f"headrace-{name.lower()}",
        "title": f"Headrace {name}",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["headrace"], "title": "Headrace", "keepTime": True}],
        "panels": placed,
    }


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend or "__auto", "datasource": SOURCE}
        for i, (legend, expr) in enumerate(panel.series.items())
    ]
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
    if panel.extra.get("stack"):
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "bargauge":
        options = {"orientation": "horizontal", "displayMode": "basic"}
    if panel.kind == "stat":
        options = {"colorMode": "none", "graphMode": "none"}
    if panel.kind != "timeseries":
        targets = [target | {"instant": True} for target in targets]
        custom = {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def files() -> dict[str, str]:
    """File name -> text, as it is committed."""
    return {
        f"{name.lower()}.json": json.dumps(dashboard(name, panels), indent=1) + "\n"
        for name, panels in DASHBOARDS.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in files().items():
        (FOLDER / file).write_text(text)
