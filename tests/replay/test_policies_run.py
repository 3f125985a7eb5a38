"""The simple policies in a running service, through crashes of it."""

import pytest

from tests.replay.test_service import check_the_run, run_to_the_end


@pytest.mark.parametrize(
    "policy",
    ["headroom_only", "variance", *(pytest.param(p, marks=pytest.mark.slow) for p in ("drift_only", "fail_rate"))],
)
async def test_a_policy_that_scans_runs_through_crashes(make_config, policy):
    config = make_config(replay={"policy": policy})
    state, learner, records = await run_to_the_end(config, crashes=3, seed=3)
    check_the_run(config, state, learner, records)
    steps = [r for r in records if r["kind"] == "step"]
    assert learner.scans and sum(r["replay_groups"] for r in steps) > 0
    if policy == "headroom_only":
        assert all(r["acceptance"] in (1.0, None) for r in steps)


async def test_trl_buffer_gives_the_places_of_groups_without_spread_to_stored_ones(make_config):
    config = make_config(run={"steps": 20}, replay={"policy": "trl_buffer", "select": 0})
    state, learner, records = await run_to_the_end(config, crashes=4, learner_crashes=2, seed=4)
    c, b, steps = state.counters, config.learner.batch, config.run.steps
    batches = {batch.step: batch for _, batch in learner.trained}
    assert all(len(batch.replay) + len(batch.fresh) == b for batch in batches.values())
    assert c.filtered == sum(len(batch.replay) for batch in batches.values()) > 0
    assert c.trained + c.filtered == steps * b and not state.fresh and not state.tasks
    assert [r["fresh_groups"] for r in records if r["kind"] == "step"] == [len(batches[s].fresh) for s in range(steps)]
    assert [r["left_out_groups"] for r in records if r["kind"] == "step"] == [
        len(batches[s].replay) for s in range(steps)
    ]
    for step, batch in batches.items():
        assert all(any(learner.headers[id].signs) for id in batch.replay), f"step {step} replayed equal rewards"
    left = {id for id in learner.headers if id in state.buffer}
    assert left == {row.id for row in state.buffer} and len(left) <= config.replay.capacity
