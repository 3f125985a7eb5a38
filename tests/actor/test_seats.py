"""An actor's room is counted in rollouts that run: a group that waits for its longest holds one seat, not all."""

import asyncio

import pytest

from services.actor.engines.engine import Generation, Sampling
from tests.actor.running import announce, headers, heartbeats, make_task, send, wait_for
from tests.actor.scripted_engine import ScriptedEngine

GROUPS, SIZE = 2, 4


class LongTailed(ScriptedEngine):
    """One rollout of each group lasts until it is let go; the others end at once."""

    def __init__(self) -> None:
        super().__init__(lambda ids, sampling: ([2], "eos"))
        self.let_go = False
        self.running = self.most = 0
        self.begun: dict[tuple[int, ...], int] = {}  # rollouts, by prompt

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        number = self.begun[tuple(ids)] = self.begun.get(tuple(ids), 0) + 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            while number == 1 and not self.let_go:
                await asyncio.sleep(0.005)
            return await super().generate(ids, sampling)
        finally:
            self.running -= 1


@pytest.mark.slow
def test_the_next_group_begins_when_there_is_room_for_it_and_never_more_run_than_may(
    make_config, redis_url, client, start_actor, publish
):
    actor = {"groups": GROUPS, "heartbeat_s": 0.1}
    config = make_config(redis={"url": redis_url}, env={"kind": "single"}, actor=actor, rollout={"group_size": SIZE})
    engine = LongTailed()
    announce(client, publish(0, seed=0))
    letters = "abcdefghijkl"
    send(client, *(make_task(i, messages=[{"role": "user", "content": x}]) for i, x in enumerate(letters)))
    start_actor(config, engine)
    # with n groups waiting for their longest there are 8 - n rollouts free: the fifth is the last that finds 4
    wait_for("five groups under way", lambda: len(engine.begun) == 5 or None, 20)
    wait_for("word of them", lambda: [b["groups_running"] for b in heartbeats(client)] == [5] or None, 20)
    assert engine.most <= GROUPS * SIZE and not headers_now(client)
    engine.let_go = True
    found = headers(client, len(letters))
    assert all(len(header.rewards) == SIZE for header in found)
    assert engine.most <= GROUPS * SIZE
    assert engine.begun == dict.fromkeys(engine.begun, SIZE) and len(engine.begun) == len(letters)


def headers_now(client) -> int:
    return client.xlen("headrace:{test}:groups")
