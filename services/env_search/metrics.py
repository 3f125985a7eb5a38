"""The Prometheus metrics of env_search. No query text or document id is ever a label."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """One set per application, in a registry of its own."""

    def __init__(self, backend: str, documents: int) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        prefix = "headrace_env_search"
        self.latency = Histogram(
            f"{prefix}_request_seconds",
            "Time to answer a /retrieve request.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.queries = Counter(f"{prefix}_queries_total", "Queries asked.", registry=self.registry)
        self.cache_hits = Counter(
            f"{prefix}_cache_hits_total", "Queries answered from the cache.", registry=self.registry
        )
        self.batch = Histogram(
            f"{prefix}_batch_queries",
            "Queries searched in one call of the backend.",
            buckets=BATCH_BUCKETS,
            registry=self.registry,
        )
        self.searching = Gauge(
            f"{prefix}_searching_seconds",
            "How long the search under way has taken, to half a second; at its limit every request is refused.",
            registry=self.registry,
        )
        self.errors = Counter(
            f"{prefix}_errors_total", "Requests that got no result, by kind.", ["kind"], registry=self.registry
        )
        for kind in ("refused", "overloaded", "deadline", "hung", "failed"):
            self.errors.labels(kind)
        documents_gauge = Gauge(f"{prefix}_documents", "Documents in the index.", ["backend"], registry=self.registry)
        documents_gauge.labels(backend).set(documents)
