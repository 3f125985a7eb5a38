"""Prompts that no actor can use: each is given up at once, and a run that has no others ends with the reason."""

import re

import msgspec
import pytest

from services.replay import refused
from services.replay.state import Store
from shared.errors import UserError
from shared.streams import Keys
from tests.replay.peers import PeerActor, PeerLearner, client_of
from tests.replay.test_dapo import leaf, serve_until
from tests.replay.test_service import new_replay

WHY = "the chat template refuses the prompt: System role not supported"


class Refusing(PeerActor):
    """Takes only every `usable`-th task; 0: none."""

    usable = 0

    def header_for(self, task, version, failed):
        header = super().header_for(task, version, failed)
        if self.usable and task.number % self.usable == 0:
            return header
        lists = ("rewards", "correct", "signs", "statuses", "sampled_tokens", "total_tokens", "searches")
        nothing: dict = {name: [] for name in lists}
        return msgspec.structs.replace(header, failure=WHY, payload_bytes=0, **nothing)


async def test_a_data_set_of_refused_prompts_ends_the_run_with_the_templates_own_sentence(make_config):
    config = make_config(run={"steps": 3}, replay={"policy": "none", "max_lag": 0})
    actor = Refusing(config.redis.url, config, 0)
    error = leaf(await serve_until(new_replay(config), PeerLearner(config.redis.url, config), actor, lambda: False))
    assert isinstance(error, UserError)
    assert re.match(rf"none of the last 10\d prompts of data.train could be used, the last one since {WHY}", str(error))
    state = await Store(client_of(config.redis.url), Keys(config.run.name)).load(now=0.0)
    assert state.counters.lost == state.counters.failed >= 99, "one attempt each"
    assert state.refused == 0, "with other prompts the run may go on"


@pytest.mark.slow
async def test_one_usable_prompt_in_ten_is_enough(make_config):
    config = make_config(run={"steps": 4}, replay={"policy": "none"})
    learner, actor = PeerLearner(config.redis.url, config), Refusing(config.redis.url, config, 0)
    actor.usable = 10
    assert await serve_until(new_replay(config), learner, actor, lambda: learner.finished) is None
    state = await Store(client_of(config.redis.url), Keys(config.run.name)).load(now=0.0)
    assert state.counters.trained == 16 and state.counters.lost > refused.AT_LEAST
