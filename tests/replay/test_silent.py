"""An actor that stops reporting is named once, and again when it is back; one that signs off is not."""

import json

from services.replay.silent import FORGOTTEN_S, Silent
from shared.streams import Keys
from tests.replay.peers import client_of

KEYS = Keys("silent")


async def test_who_falls_silent_is_named_once_and_so_is_who_comes_back(redis_url):
    now = [0.0]
    client = client_of(redis_url)
    silent = Silent(client, KEYS, lambda: now[0])
    for name in ("hung", "leaving"):
        await client.sadd(KEYS.actors, name)
        await client.set(KEYS.actor(name), json.dumps({"groups_running": 3}))
    assert await silent.look() == []
    await client.delete(KEYS.actor("hung"), KEYS.actor("leaving"))
    await client.srem(KEYS.actors, "leaving")
    (said,) = await silent.look()
    assert "actor hung has stopped reporting" in said and "its 3 groups" in said
    assert (silent.alive, silent.silent) == (0, 1)
    assert await silent.look() == []
    now[0] = 42.0
    await client.set(KEYS.actor("hung"), "{}")
    assert await silent.look() == ["actor hung reports again after 42 s."]
    assert (silent.alive, silent.silent) == (1, 0)


async def test_the_names_of_the_dead_do_not_pile_up(redis_url):
    now = [0.0]
    client = client_of(redis_url)
    silent = Silent(client, KEYS, lambda: now[0])
    await client.sadd(KEYS.actors, *(f"dead-{i}" for i in range(50)))
    assert len(await silent.look()) == 50
    now[0] = FORGOTTEN_S + 1
    assert await silent.look() == []
    assert await client.scard(KEYS.actors) == silent.silent == 0
