"""`replay.free_refresh`: what a replayed group is worth is taken from its training, from its scan, or not at all."""

import math
from itertools import pairwise

import msgspec
import pytest

from services.replay.policies import get_policy
from shared.config import Config, build
from shared.messages import Record
from tests.replay.played import play
from tests.replay.recording import Recording

STEPS = 20


@pytest.mark.parametrize("free", [True, False])
def test_a_replayed_group_takes_its_scores_from_its_training_where_that_is_wanted_else_from_its_scan(free: bool):
    recording = Recording()

    def trained(id: str, step: int) -> Record:
        scanned = recording.scanned(id, step)
        return msgspec.structs.replace(scanned, headroom=scanned.headroom / 2, sum_d2=scanned.sum_d2 + 1.0)

    source = trained if free else recording.scanned
    looked_at = 0
    config = _config(recording, "headroom_drift", free)
    for step, following in pairwise(play(config, get_policy("headroom_drift"), recording, STEPS, trained)):
        left = {row.id: row for row in following.before}
        for id in {*step.batch.replay, *step.scanned} & set(left):
            wanted = source(id, step.step) if id in step.batch.replay else recording.scanned(id, step.step)
            assert (left[id].headroom, left[id].drift) == pytest.approx((wanted.headroom, wanted.drift))
            looked_at += id in step.batch.replay
    assert looked_at > STEPS


def test_a_group_of_which_a_part_was_trained_keeps_its_scores():
    recording = Recording()
    config, looked_at = _config(recording, "rollout_advantage", True), 0
    steps = play(config, get_policy("rollout_advantage"), recording, STEPS, recording.scanned)
    for step, following in pairwise(steps):
        before, left = ({row.id: row for row in seen.before} for seen in (step, following))
        for id in set(step.batch.parts) & set(left):
            assert left[id].headroom == before[id].headroom and math.isnan(left[id].drift), "never measured"
            looked_at += 1
    assert looked_at > STEPS


def _config(recording: Recording, policy: str, free: bool) -> Config:
    return build(
        {
            "learner": {"batch": recording.batch},
            "replay": {"policy": policy, "free_refresh": free, "capacity": 48},
            "rollout": {"group_size": recording.group_size},
        }
    )
