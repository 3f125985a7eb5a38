"""The replay service never sees a token array: it does not load the code, and it works where the server forbids it."""

import asyncio
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import NoPermissionError

from services.replay.service import Replay
from shared.cancellation import stop
from shared.streams import Keys
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of

LOADED = """
import importlib, pkgutil, sys
import services.replay
for module in pkgutil.walk_packages(services.replay.__path__, "services.replay."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import shared.metrics, shared.redis_client, shared.http_server
print(*sorted({"torch", "transformers", "tokenizers", "shared.payload"} & set(sys.modules)))
"""


def test_replay_imports_neither_torch_nor_the_payload_codec():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


async def test_replay_works_without_the_right_to_read_payloads(make_config, redis_server_url):
    config = make_config(run={"steps": 6})
    keys, admin = Keys(config.run.name), client_of(redis_server_url)
    if int((await admin.info("server"))["redis_version"].split(".")[0]) < 7:
        pytest.skip("this Redis is older than 7 and cannot forbid reading some keys")
    streams = ("tasks", "groups", "work", "results", "events", "dead")
    own = [keys.prefix + name for name in ("replay:*", "actors", "actor:*", *streams)]
    rules = ["on", ">pw", "+@all", *[f"~{key}" for key in own], f"%W~{keys.payload('*')}", f"%W~{keys.reference('*')}"]
    await admin.execute_command("ACL", "SETUSER", "blind", "reset", *rules)
    url = f"redis://blind:pw@{redis_server_url.rpartition('@')[2]}"
    with pytest.raises(NoPermissionError):
        await client_of(url).get(keys.payload("t1"))

    learner, actor = PeerLearner(redis_server_url, config), PeerActor(redis_server_url, config, 0)
    service = Replay(config, client_of(url), Questions(9), None, CollectorRegistry())
    tasks = [asyncio.create_task(service.run()), asyncio.create_task(learner.run())]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(actor.run()))
    try:
        async with asyncio.timeout(30):
            while not learner.finished:
                await asyncio.sleep(0.02)
                assert not tasks[0].done(), tasks[0].exception()
    finally:
        await stop(*tasks)
        await admin.execute_command("ACL", "DELUSER", "blind")
    assert service.state is not None and service.state.counters.trained == 24
    assert service.metrics.reconnects._value.get() == 0, "nothing it tried was forbidden"
