"""A server that lost its last seconds, or everything, while the learner lives on: the run goes on by itself."""

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import WatchError

from services.replay.service import Replay
from services.replay.state import State, Store
from shared.cancellation import stop
from shared.messages import Hello, Sync, Work, decode, encode
from shared.streams import FIELD, LEARNER, Keys
from shared.versions import Version
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of

# whole, as a server that starts again is: no key of one moment beside a key of another
_SNAPSHOT = """
local out = {}
for _, name in ipairs(redis.call('KEYS', ARGV[1])) do
  out[#out + 1] = name
  out[#out + 1] = redis.call('DUMP', name)
end
return out
"""
_RESTORE = """
for _, name in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', name) end
for i = 2, #ARGV, 2 do redis.call('RESTORE', ARGV[i], 0, ARGV[i + 1]) end
"""


class Run:
    """A run with peers, whose server can be made to forget."""

    def __init__(self, config: Any, every: int = 3, actors: int = 2, questions: int = 50) -> None:
        self.config, self.url, self.questions = config, config.redis.url, questions
        self.client, self.keys = client_of(self.url), Keys(config.run.name)
        self.learner = PeerLearner(self.url, config, every=every)
        self.actors = [PeerActor(self.url, config, seed) for seed in range(actors)]
        self.replay = self._new_replay()
        self.learning = asyncio.create_task(self.learner.run())
        self.acting = [asyncio.create_task(actor.run()) for actor in self.actors]

    def _new_replay(self) -> asyncio.Task:
        client = client_of(self.url)
        service = Replay(self.config, client, Questions(self.questions), None, CollectorRegistry())
        return asyncio.create_task(service.run())

    async def trained(self, steps: int) -> None:
        while len(self.learner.trained) < steps and not self.learner.finished:
            await asyncio.sleep(0.005)
            for task in (self.replay, self.learning, *self.acting):
                if task.done() and not self.learner.finished:
                    task.result()

    async def snapshot(self) -> list[bytes]:
        """Every key of the run with its content, at one moment."""
        return await cast(Any, self.client.eval(_SNAPSHOT, 0, self.keys.prefix + "*"))

    async def go_back_to(self, snapshot: list[bytes]) -> None:
        """What replay, which sees its connections die with the server, finds when it has loaded its state again."""
        await stop(self.replay)
        await self.restore(snapshot)
        self.replay = self._new_replay()

    async def restore(self, snapshot: list[bytes]) -> None:
        """The server is what it was then, under all who live."""
        await cast(Any, self.client.eval(_RESTORE, 0, self.keys.prefix + "*", *snapshot))

    async def empty(self) -> None:
        """Everything is gone at once."""
        await self.restore([])

    async def close(self) -> State:
        await stop(self.replay, self.learning, *self.acting)
        return await Store(self.client, self.keys).load(now=0.0)

    @property
    def numbers(self) -> list[int]:
        """Of every group that was trained fresh, in order."""
        return [int(id[1:]) for _, batch in self.learner.trained for id in batch.fresh]


@pytest.mark.parametrize(
    ("every", "max_lag"), [(1, 0), (3, 2), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((1, 2), (3, 0)))]
)
async def test_a_server_that_went_back_in_time_costs_no_step_and_no_prompt(make_config, max_lag, every):
    config = make_config(run={"steps": 14}, replay={"max_lag": max_lag})
    run = Run(config, every)
    async with asyncio.timeout(40):
        for at, lost in ((3, 1), (6, 3)):
            await run.trained(at)
            before = await run.snapshot()
            await run.trained(at + lost)
            await run.go_back_to(before)
        await run.trained(10**9)
    state = await run.close()
    assert [batch.step for _, batch in run.learner.trained] == list(range(14)), "no step is trained twice or left out"
    assert sorted(run.numbers) == list(range(14 * config.learner.batch)), "every prompt once"
    assert state.counters.step == 14 and not state.tasks and not state.fresh


async def test_a_server_that_has_lost_the_start_of_the_newest_replay_does_not_end_it(make_config):
    run = Run(make_config(run={"steps": 9}))
    async with asyncio.timeout(60):
        await run.trained(2)
        await stop(run.replay)
        before = await run.snapshot()
        run.replay = run._new_replay()
        await run.trained(4)
        await run.restore(before)  # with the epoch of the process before
        await run.trained(10**9)
    assert int(await run.client.get(run.keys.prefix + "replay:epoch") or 0) == 3, "above that of each life before"
    state = await run.close()
    assert [batch.step for _, batch in run.learner.trained] == list(range(9))
    assert sorted(run.numbers) == list(range(9 * run.config.learner.batch)) and state.counters.step == 9


@pytest.mark.slow
async def test_a_server_that_is_emptied_under_a_running_system_costs_no_step_and_no_prompt(make_config):
    config = make_config(run={"steps": 14}, replay={"max_lag": 2})
    run = Run(config)
    async with asyncio.timeout(40):
        await run.trained(5)
        await run.empty()
        await run.trained(10**9)
    state = await run.close()
    assert [batch.step for _, batch in run.learner.trained] == list(range(14))
    assert sorted(run.numbers) == list(range(14 * config.learner.batch))
    assert state.counters.issued - state.counters.gone == 14 * config.learner.batch


async def test_a_learner_that_resumes_on_an_empty_server_brings_the_cursor(make_config):
    config = make_config(run={"steps": 12}, replay={"max_lag": 2, "policy": "none"})
    run = Run(config, every=5)
    async with asyncio.timeout(40):
        await run.trained(7)
        await run.close()
        used = [int(id[1:]) for _, batch in run.learner.trained for id in batch.fresh if batch.step < 5]
        await run.empty()
        run.learner.trained.clear()
        run.replay = run._new_replay()
        run.learning = asyncio.create_task(run.learner.run())
        run.acting = [asyncio.create_task(PeerActor(run.url, config, 7).run())]
        await run.trained(10**9)
    await run.close()
    assert [batch.step for _, batch in run.learner.trained] == list(range(5, 12))
    assert sorted(used + run.numbers) == list(range(12 * config.learner.batch))


async def test_an_old_word_of_the_learner_that_comes_late_is_no_question_to_wait_for(make_config):
    run = Run(make_config(run={"steps": 8}))
    async with asyncio.timeout(40):
        await run.trained(3)
        late = Hello(version=Version(0, 0), again=True)
        await run.client.xadd(run.keys.results, {FIELD: encode(late)})
        await run.trained(10**9)
    state = await run.close()
    assert [batch.step for _, batch in run.learner.trained] == list(range(8)) and state.counters.step == 8


async def test_a_learner_whose_next_batch_is_gone_is_asked_where_it_goes_on(make_config):
    run = Run(make_config(run={"steps": 8}), every=1)
    async with asyncio.timeout(40):
        await run.trained(4)
        await stop(run.learning)
        await run.client.delete(run.keys.work)
        await run.client.xgroup_create(run.keys.work, LEARNER, "0", mkstream=True)
        resumed = Hello(version=Version(1, 2))  # from an older checkpoint, whose batches a newer one has freed
        await run.client.xadd(run.keys.results, {FIELD: encode(resumed)})
        asked: list[Work] = []
        while not any(isinstance(message, Sync) for message in asked):
            await asyncio.sleep(0.005)
            entries: Any = await run.client.xrange(run.keys.work)
            asked = [decode(fields[FIELD], Work) for _, fields in entries]
    await run.close()


async def test_a_transaction_that_arrives_after_the_state_was_loaded_again_has_no_effect(redis_url):
    client, keys = client_of(redis_url), Keys("late")
    store = Store(client, keys)
    life = await store.take_over()
    late = store.transaction(await store.load(now=0.0))
    tx = await late.__aenter__()
    tx.event("warning", text="late")
    assert await store.take_over() == life
    with pytest.raises(WatchError):
        await late.__aexit__(None, None, None)
    assert not await client.xlen(keys.events)
    await client.aclose()


async def test_a_learner_that_starts_again_after_the_end_is_told_of_the_end(make_config):
    config = make_config(run={"steps": 6})
    run = Run(config)
    async with asyncio.timeout(40):
        await run.trained(10**9)
        await run.learning
        run.learner.finished = False
        await run.learner.run()  # returns with Finish
    state = await run.close()
    assert run.learner.finished and run.learner.lineage == 1
    assert len(run.learner.trained) == 6 and state.counters.finished
