"""What enters the buffer when the reward has two parts, answer and format: real groups, answered as mathematics is.

Every rollout of the recording keeps whether its answer is right, and is given a text with or without a box, which is
scored as the actor scores it.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from services.replay.policies import Policy, get_policy
from services.replay.rules import has_spread
from shared.advantages import group_advantages
from shared.config import build
from shared.messages import GroupHeader
from shared.rewards import score
from tests.replay.played import Played, play
from tests.replay.recording import Recording

STEPS, SELECT = 40, 6
SETTINGS = {"policy": "headroom_drift", "select": SELECT, "tau": 0.03, "capacity": 48}


class Graded(Recording):
    """The recording with rewards for answer and box together. `boxed`: how many of a hundred rollouts use a box."""

    def __init__(self, boxed: int) -> None:
        super().__init__()
        self._boxed = boxed

    def fresh(self, step: int) -> list[GroupHeader]:
        return [self._graded(header) for header in super().fresh(step)]

    def _graded(self, header: GroupHeader) -> GroupHeader:
        rng = random.Random(header.id)
        texts = [self._text(right, rng) for right in header.correct]
        scores = [score("math", text, "12", format_score=True) for text in texts]
        rewards = [s.reward for s in scores]
        signs = [int(sign) for sign in np.sign(group_advantages(rewards))]
        correct = [s.correct for s in scores]
        assert correct == header.correct
        return msgspec.structs.replace(header, rewards=rewards, correct=correct, signs=signs)

    def _text(self, right: bool, rng: random.Random) -> str:
        answer = 12 if right else rng.randint(13, 99)
        return f"so \\boxed{{{answer}}}" if rng.randrange(100) < self._boxed else f"so\n#### {answer}"


def rewarded(header: GroupHeader) -> bool:
    """Ingress by "reward > 0"."""
    return 0 < sum(reward > 0 for reward in header.scored) < len(header.scored)


def steps_of(policy: Policy, recording: Recording) -> Iterator[Played]:
    sections = {"learner": {"batch": recording.batch}, "rollout": {"group_size": recording.group_size}}
    return play(build(sections | {"replay": SETTINGS}), policy, recording, STEPS)


@pytest.mark.parametrize("boxed", [pytest.param(100, marks=pytest.mark.slow), 80])
def test_ingress_goes_by_the_answer_and_stays_alive_where_the_reward_would_dry_it_up(boxed: int):
    recording, ours = Graded(boxed), get_policy("headroom_drift")
    stored: set[str] = set()
    replayed = []
    for seen in steps_of(ours, recording):
        right = {header.id: sum(header.correct) for header in seen.fresh}
        entered = set(seen.after) & set(right)
        assert entered == {id for id, n in right.items() if 0 < n < recording.group_size}
        stored |= entered
        replayed.append(len(seen.batch.replay))
    assert len(stored) > STEPS
    assert np.mean(replayed[3:]) > SELECT / 2

    by_reward = list(steps_of(replace(ours, keeps=rewarded), recording))
    assert not any(seen.after or seen.batch.replay for seen in by_reward), "every rollout earns something"


def test_groups_without_any_right_answer_stay_out_though_their_rewards_differ():
    recording, ours = Graded(60), get_policy("headroom_drift")
    let_in = 0
    for seen, spread in zip(
        steps_of(ours, recording), steps_of(replace(ours, keeps=has_spread), recording), strict=True
    ):
        same = [h.id for h in seen.fresh if sum(h.correct) in (0, recording.group_size) and has_spread(h)]
        assert not set(same) & set(seen.after)
        assert set(same) <= set(spread.after)
        let_in += len(same)
    assert let_in > STEPS
