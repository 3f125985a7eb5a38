"""Scores of a group's rollouts, whatever the reward does: one that raises, hangs or gives no number leaves its rollout
unscored, which masks it out; the others are scored, and the actor goes on.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from services.actor import metrics
from services.actor.rollout import Rollout
from services.actor.troubles import TROUBLES
from shared.config import Config
from shared.errors import UserError
from shared.messages import LARGEST
from shared.rewards import Scored, score
from shared.rewards.own import CALLS_AT_ONCE, Asked, RewardFailed, score_own

log = logging.getLogger("headrace")
UNSCORED = Scored(None, False)
PARTS = 16  # of a reward, that travel
LATE_S = 10.0  # after the deadline by which math-verify gives up by itself; what is not there then hangs
# Of their own: they wait for the processes that score, and a swap of weights must find a free thread meanwhile.
_SCORERS = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="score")


async def score_rollouts(
    rollouts: list[Rollout], asked: Asked, config: Config, deadline: float, late_s: float = LATE_S
) -> list[Scored]:
    """A score per rollout, from sampled text only; unscored where the rollout did not end by itself.

    Also unscored: what no process with math-verify or reward.function was free for before `deadline` (of
    time.monotonic), and what no reward could be had for `late_s` after it.
    """
    loop = asyncio.get_running_loop()
    jobs = [loop.run_in_executor(_SCORERS, _score, r, asked, config, deadline) for r in rollouts]
    done, _ = await asyncio.wait(jobs, timeout=max(deadline - time.monotonic(), 0) + late_s)
    for job in jobs:
        if job not in done:
            job.cancel()
            _failed(f"has not ended {late_s:g} s after its deadline")
    return [job.result() if job in done else UNSCORED for job in jobs]


def part_sums(scores: Iterable[Scored]) -> dict[str, tuple[float, int]]:
    """What the rewards of a group are made of: of each part its sum, over how many scored rollouts; PARTS at most."""
    sums: dict[str, tuple[float, int]] = {}
    for scored in scores:
        for name, value in scored.parts.items() if scored.reward is not None else ():
            if abs(value) <= LARGEST and (name in sums or len(sums) < PARTS):
                total, n = sums.get(name, (0.0, 0))
                sums[name] = (total + value, n + 1)
    return sums


def _score(rollout: Rollout, asked: Asked, config: Config, deadline: float) -> Scored:
    if not rollout.scored:
        return UNSCORED
    text, reward = rollout.sampled_text, config.reward
    try:
        if reward.function:
            return score_own(reward.function, text, asked, reward.timeout_s, deadline - time.monotonic())
        scored = score(reward.kind, text, asked.ground_truth, format_score=reward.format_score, deadline=deadline)
        given = scored.reward
    except UserError:
        raise
    except RewardFailed as error:
        return _failed(str(error))
    except Exception as error:  # noqa: BLE001  a reward meets whatever a policy writes
        return _failed(f"raised {type(error).__name__}: {error}")
    if given is None:
        return scored
    number = isinstance(given, int | float) and math.isfinite(given) and abs(given) <= LARGEST
    return scored if number else _failed(f"is {given!r:.40}, which is no reward")


def _failed(how: str) -> Scored:
    metrics.REWARD_FAILURES.inc()
    TROUBLES.note("reward", 1, how)
    log.warning("the reward of a rollout %s: it is masked out", how)
    return UNSCORED
