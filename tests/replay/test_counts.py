"""What a run counts of lengths and of prompts that are fresh and replayed at once, against a literal count."""

import asyncio
import random

import msgspec
import pytest

from services.replay import lengths
from services.replay.records import Counters
from services.replay.tasks import question_index, train_task
from shared import events
from shared.config import build
from shared.messages import FINISHED, TIMED_OUT, TRUNCATED, GroupHeader
from shared.versions import Version
from tests.replay.peers import Questions, header_for
from tests.replay.test_resync import Run


async def test_prompts_that_are_fresh_and_replayed_in_one_step_are_counted(make_config):
    config = make_config(run={"steps": 20}, replay={"policy": "naive"})
    run = Run(config, questions=6)
    async with asyncio.timeout(40):
        await run.trained(10**9)
    state = await run.close()
    expected = 0
    for _, batch in run.learner.trained:
        fresh, replayed = (
            {question_index(config, 6, int(id[1:])) for id in ids} for ids in (batch.fresh, batch.replay)
        )
        expected += len(fresh & replayed)
    last = [r for _, r in events.parse(await run.client.xrange(run.keys.events)) if r["kind"] == "step"][-1]
    assert last["same_prompts"] == state.counters.same_prompt == expected > 0
    assert last["length_offered_mean"] == last["length_trained_mean"] == 9.0


def test_answers_that_ended_and_were_not_scored_are_offered_and_not_trained() -> None:
    counters = Counters(started=0.0)
    header = _header(total_tokens=[10, 20, 90], rewards=[1.0, 0.0, None], statuses=[FINISHED, TRUNCATED, FINISHED])
    lengths.offered(counters, header)
    lengths.trained(counters, [header])
    assert lengths.means(counters) == {"length_offered_mean": 40.0, "length_trained_mean": 15.0}
    assert lengths.means(Counters(started=0.0)) == {"length_offered_mean": None, "length_trained_mean": None}


def test_answers_that_the_deadline_cut_are_counted_and_have_no_length() -> None:
    counters = Counters(started=0.0)
    lost = _header(total_tokens=[700, 0, 0, 0], rewards=[1.0, None, None, None])  # a turn that is cut leaves no token
    lengths.offered(counters, lost)
    header = _header(total_tokens=[800, 900, 0, 0], rewards=[1.0, 0.0, None, None])
    lengths.offered(counters, header)
    lengths.trained(counters, [header])
    assert lengths.means(counters) == {"length_offered_mean": 800.0, "length_trained_mean": 850.0}
    assert counters.timed_out_rollouts == 5


def test_lengths_of_responses_are_those_of_scored_rollouts():
    header = msgspec.structs.replace(
        _header([90] * 4, [1.0, 0.0, None, 0.0]),
        sampled_tokens=[10, 20, 80, 60],
        statuses=[FINISHED, TRUNCATED, TIMED_OUT, FINISHED],
    )
    assert lengths.of_responses([header]) == {
        "response_tokens_mean": 30.0,
        "response_tokens_p90": pytest.approx(52.0),
        "response_clipped_share": pytest.approx(1 / 3),
    }
    assert set(lengths.of_responses([_header([90] * 2, [None, None])]).values()) == {None}


def _header(total_tokens: list[int], rewards: list[float | None], statuses: list[str] | None = None) -> GroupHeader:
    config = build({"rollout": {"group_size": len(rewards)}})
    task = train_task(config, Questions(1), 0, attempt=0, min_version=0)
    header = header_for(task, random.Random(0), Version(0, 0))
    statuses = statuses or [FINISHED if reward is not None else TIMED_OUT for reward in rewards]
    return msgspec.structs.replace(header, total_tokens=total_tokens, rewards=rewards, statuses=statuses)
