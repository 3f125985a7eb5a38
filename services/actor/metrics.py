"""What an actor exports to Prometheus. Read `headrace_actor_sampled_tokens_total` first."""

from prometheus_client import Counter, Gauge, Histogram

from shared.metrics import RedisWait
from shared.round_trip import RoundTrip

GROUPS = Counter("headrace_actor_groups_total", "groups by outcome", ["outcome"])  # stored | duplicate | failed | ...
TOKENS = Counter("headrace_actor_sampled_tokens_total", "tokens the policy sampled")
GENERATION = Histogram(
    "headrace_actor_generation_seconds",
    "one turn, from request to its last token",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
SWAP = Histogram(
    "headrace_actor_swap_seconds",
    "time in which a weight swap kept the engine from generating",
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
REFUSED = Counter("headrace_actor_canary_refusals_total", "weights that were refused")
MISSING = Counter("headrace_actor_weights_missing_total", "times that announced weights could not be had")
VERSION = Gauge("headrace_actor_weights_version_number", "the weights in force, -1 before the first")
RECEIVED = Counter(
    "headrace_actor_weights_received_bytes_total", "weights that came by Redis or by broadcast, in bytes"
)
ENV_FAILURES = Counter("headrace_actor_env_failures_total", "rollouts the environment did not answer")
TIMEOUTS = Counter("headrace_actor_timed_out_rollouts_total", "rollouts cut by their group's deadline")
REWARD_FAILURES = Counter("headrace_actor_reward_failures_total", "rollouts whose reward raised, hung or was no number")
RETRIES = Counter("headrace_actor_retrieval_retries_total", "retrieval requests sent again")
RETRIEVAL = Histogram(
    "headrace_actor_retrieval_seconds",
    "one request to the retriever that was answered, as the actor sees it",
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
RETRIEVAL_FAILURES = Counter("headrace_actor_retrieval_failures_total", "retrieval requests given up after all tries")
RUNNING = Gauge("headrace_actor_running_groups", "groups being rolled out")
WAITING = Gauge("headrace_actor_waiting_groups", "tasks that wait for newer weights")
REDIS_OUTAGES = Counter("headrace_actor_redis_outages_total", "times Redis was away, or refused writes")
REDIS_WAIT = RedisWait("actor")
ROUND_TRIP = RoundTrip("actor")
