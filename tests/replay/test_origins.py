"""Two kinds of actors at once, as in a rolling upgrade, and a change that is undone."""

import asyncio

from shared import events
from tests.replay.test_resync import Run

OLD, NEW = {"tokenizer": "a"}, {"tokenizer": "b"}


async def warnings_of(run: Run) -> list[str]:
    records = [record for _, record in events.parse(await run.client.xrange(run.keys.events))]
    return [record["text"] for record in records if record["kind"] == "warning"]


async def test_a_rolling_upgrade_empties_the_buffer_once_and_then_stores_the_new_kind_alone(make_config):
    run = Run(make_config(run={"steps": 30}, replay={"policy": "naive"}))
    async with asyncio.timeout(60):
        await run.trained(8)
        run.actors[0].fingerprints = NEW
        await run.trained(20)
        await run.trained(10**9)
        made = {id: header for actor in run.actors for id, header in actor.headers.items()}
    state = await run.close()
    told = await warnings_of(run)
    assert sum("stored groups were dropped" in text for text in told) == 1
    assert sum("still come: they are trained, not stored" in text for text in told) == 1
    assert len(state.buffer) > 0
    assert all(made[row.id].fingerprints == NEW for row in state.buffer)
    assert [batch.step for _, batch in run.learner.trained] == list(range(30)), "both kinds are trained fresh"
    late = [batch for _, batch in run.learner.trained if batch.step >= 15]
    assert any(batch.replay for batch in late)
    assert all(made[id].fingerprints == NEW for batch in late for id in batch.replay)


async def test_a_change_that_is_undone_is_taken_back_in_the_end(make_config):
    run = Run(make_config(run={"steps": 45}, replay={"policy": "naive"}))
    async with asyncio.timeout(60):
        for at, kind in ((5, NEW), (12, OLD)):
            await run.trained(at)
            for actor in run.actors:
                actor.fingerprints = kind
        await run.trained(10**9)
    state = await run.close()
    assert sum("stored groups were dropped" in text for text in await warnings_of(run)) == 2
    assert state.counters.fingerprints == OLD
    assert len(state.buffer) > 0
