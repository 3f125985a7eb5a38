"""What `naive` would have picked: measured right, a few at a time, and without any effect on the run."""

import asyncio
import random

import msgspec
import pytest

from services.replay.buffer import Buffer
from services.replay.counterfactual import CHUNK, Counterfactual
from services.replay.policies import get_policy
from shared import events, messages
from shared.cancellation import stop
from shared.messages import Batch, Record, Task
from shared.streams import Entry, Keys
from shared.versions import Version
from tests.replay.peers import PeerActor, PeerLearner, client_of, header_for
from tests.replay.played import Played, play
from tests.replay.recording import Recording
from tests.replay.test_policies import settings
from tests.replay.test_service import new_replay


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


@pytest.mark.parametrize("name", ["headroom_drift", "uniform", "naive"])
def test_both_sides_are_the_means_of_what_was_measured(name: str):
    recording, rng = Recording(), random.Random(0)
    for seen in play(settings(name, recording), get_policy(name), recording, 60):
        compared, asked = counterfactual_of(seen), []
        chunks = rng.randrange(8)  # then the batch is ready
        while len(asked) < chunks and (ids := compared.next_scan()):
            asked.append(ids)
            compared.take([recording.scanned(id, seen.step) for id in ids])
        ids = [id for chunk in asked for id in chunk]
        assert len(set(ids)) == len(ids) and all(len(chunk) <= CHUNK for chunk in asked)
        assert not set(ids) & set(seen.scanned), "nothing is scanned twice"
        known = {*ids, *seen.scanned}
        newest = [row.id for row in seen.before][::-1][: seen.selection.wanted]
        rows = {row.id: row for row in seen.before}
        stats = compared.stats(seen.step, [rows[id] for id in seen.batch.replay])
        for side, group_ids in (("picked", seen.batch.replay), ("naive", newest)):
            measured = [recording.scanned(id, seen.step) for id in group_ids if id in known]
            assert (stats[side]["groups"], stats[side]["measured"]) == (len(group_ids), len(measured))
            assert stats[side]["headroom"] == pytest.approx(mean([r.headroom for r in measured]))
            assert stats[side]["drift"] == pytest.approx(mean([r.drift for r in measured]))
            assert stats[side]["age"] == pytest.approx(mean([seen.step - rows[id].step for id in group_ids]))
        everyone = {*newest, *seen.batch.replay}
        assert stats["measured"] == (len(everyone & known) / len(everyone) if everyone else None)


def test_with_time_enough_everything_is_measured_and_naive_equals_itself():
    recording = Recording()
    for seen in play(settings("naive", recording), get_policy("naive"), recording, 30):
        compared = counterfactual_of(seen)
        while ids := compared.next_scan():
            compared.take([recording.scanned(id, seen.step) for id in ids])
        rows = {row.id: row for row in seen.before}
        stats = compared.stats(seen.step, [rows[id] for id in seen.batch.replay])
        assert stats["picked"] == stats["naive"] and stats["measured"] in (1.0, None)


def test_a_record_that_is_not_finite_measures_nothing():
    recording = Recording()
    seen = list(play(settings("naive", recording), get_policy("naive"), recording, 3))[-1]
    compared = counterfactual_of(seen)
    records = [recording.scanned(id, seen.step) for id in compared.next_scan()]
    compared.take([_spoiled(r) for r in records])
    assert compared.stats(seen.step, [])["naive"]["measured"] == 0


def counterfactual_of(seen: Played) -> Counterfactual:
    s = seen.selection
    return Counterfactual(Buffer(seen.before), s.accepted, s.refreshed, s.wanted)


def _spoiled(r: Record) -> Record:
    return msgspec.structs.replace(r, sum_d2=float("nan"))


class SteadyActor(PeerActor):
    """Its groups depend on the task alone."""

    async def _answer(self, entry: Entry) -> None:
        task = messages.decode(entry.data, Task)
        await asyncio.sleep(self.rng.uniform(0.005, 0.02))
        header = header_for(task, random.Random(task.id), Version(0, task.min_version))
        await self.store.store(task.id, messages.encode(header), b"p" * 64, entry.id)


class SteadyLearner(PeerLearner):
    """Its records depend on the group and the step alone."""

    def record(self, id: str) -> Record:
        self.rng = random.Random(f"{id} at {len(self.trained)}")
        return super().record(id)


async def run(config) -> tuple[list[Batch], list[dict], SteadyLearner]:
    learner, actor = SteadyLearner(config.redis.url, config), SteadyActor(config.redis.url, config, 0)
    tasks = [asyncio.create_task(new_replay(config).run()), asyncio.create_task(learner.run())]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(actor.run()))
    await learner.until_finished(60)
    await stop(*tasks)
    stored = await client_of(config.redis.url).xrange(Keys(config.run.name).events)
    return [b for _, b in learner.trained], [r for _, r in events.parse(stored) if r["kind"] == "step"], learner


@pytest.mark.parametrize("policy", ["headroom_drift", "uniform", "none"])
async def test_a_run_with_it_chooses_what_a_run_without_it_chooses(make_config, policy):
    def made(on: bool):
        return make_config(replay={"policy": policy, "counterfactual": on, "max_lag": 0, "scan_chunk": 16})

    without, plain, _ = await run(made(False))
    batches, steps, learner = await run(made(True))
    assert [(b.replay, b.fresh) for b in batches] == [(b.replay, b.fresh) for b in without]
    assert all("counterfactual" not in step for step in plain)
    compared = [step["counterfactual"] for step in steps]
    assert len(compared) == len(steps)
    if policy == "none":
        assert all(c["measured"] is None for c in compared) and not learner.scans
    else:
        assert max(c["measured"] or 0.0 for c in compared) == 1.0, "the time spent waiting was used"
        assert all(step["counterfactual"]["picked"]["groups"] == step["replay_groups"] for step in steps)
