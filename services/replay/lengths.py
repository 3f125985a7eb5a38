"""How long what actors bring is, and what is trained: a gap between the two says that long answers are lost on the way.

Lengths are tokens after the prompt, sampled and retrieved, of one rollout. Offered: every rollout that ended by itself,
of every attempt at a training task. Trained: the scored ones of the groups that the learner took. How long a rollout
would have become that rollout.deadline_s cut nobody knows, so these are counted by themselves.
"""

from collections.abc import Iterable

import numpy as np

from services.replay.records import Counters
from shared.messages import FINISHED, TIMED_OUT, TRUNCATED, GroupHeader


def offered(counters: Counters, header: GroupHeader) -> None:
    """Count what an attempt brought."""
    statuses = header.statuses
    lengths = [n for n, how in zip(header.total_tokens, statuses, strict=True) if how in (FINISHED, TRUNCATED)]
    counters.offered_rollouts += len(lengths)
    counters.offered_tokens += sum(lengths)
    counters.timed_out_rollouts += statuses.count(TIMED_OUT)


def trained(counters: Counters, headers: Iterable[GroupHeader]) -> None:
    """Count the fresh groups of a step."""
    for header in headers:
        lengths = [n for n, reward in zip(header.total_tokens, header.rewards, strict=True) if reward is not None]
        counters.trained_rollouts += len(lengths)
        counters.trained_tokens += sum(lengths)


def means(counters: Counters) -> dict[str, float | None]:
    """Over the run so far."""
    c = counters
    return {
        "length_offered_mean": c.offered_tokens / c.offered_rollouts if c.offered_rollouts else None,
        "length_trained_mean": c.trained_tokens / c.trained_rollouts if c.trained_rollouts else None,
    }


def of_responses(fresh: Iterable[GroupHeader]) -> dict[str, float | None]:
    """Of one step's scored rollouts: sampled tokens, mean and 90th percentile, and the share that a limit cut off."""
    scored = [
        (tokens, status == TRUNCATED)
        for h in fresh
        for tokens, status, reward in zip(h.sampled_tokens, h.statuses, h.rewards, strict=True)
        if reward is not None
    ]
    tokens, clipped = np.array(scored, np.float64).reshape(-1, 2).T
    return {
        "response_tokens_mean": float(tokens.mean()) if scored else None,
        "response_tokens_p90": float(np.quantile(tokens, 0.9)) if scored else None,
        "response_clipped_share": float(clipped.mean()) if scored else None,
    }
