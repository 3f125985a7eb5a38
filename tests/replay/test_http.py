"""The HTTP side of the service: what it says before, during and after a run."""

import asyncio

import httpx
from prometheus_client import CollectorRegistry

from services.replay.http import make_app
from services.replay.metrics import ReplayMetrics
from services.replay.service import Replay
from shared.cancellation import stop
from shared.http_server import listen, serve_http
from shared.streams import DEAD_LETTERS_KEPT, Keys, bury
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of


async def test_health_metrics_and_groups_over_real_http(make_config):
    config = make_config(run={"steps": 8})
    service = Replay(config, client_of(config.redis.url), Questions(50), None, CollectorRegistry())
    sock = listen("127.0.0.1", 0, "replay.port")
    web = asyncio.create_task(serve_http(make_app(service), sock))
    learner, actor = PeerLearner(config.redis.url, config), PeerActor(config.redis.url, config, 0)
    tasks = [web]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}") as http, asyncio.timeout(30):
        early = await http.get("/health")
        assert early.status_code == 503 and early.json()["waiting_for"] == "Redis"
        assert (await http.get("/groups")).status_code == 503
        tasks += [asyncio.create_task(service.run()), asyncio.create_task(learner.run())]
        await asyncio.sleep(0.05)
        tasks.append(asyncio.create_task(actor.run()))
        while not learner.finished:
            await asyncio.sleep(0.02)
        health = (await http.get("/health")).json()
        assert (health["ready"], health["step"], health["finished"]) == (True, 8, True)
        page = (await http.get("/groups", params={"limit": 3})).json()
        headrooms = [group["headroom"] for group in page["groups"]]
        assert len(headrooms) == 3 and headrooms == sorted(headrooms, reverse=True)
        assert page["total"] == len(service.state.buffer) == health["buffer_groups"]
        rest = (await http.get("/groups", params={"offset": 3})).json()["groups"]
        assert len(rest) == page["total"] - 3 and not {g["id"] for g in rest} & {g["id"] for g in page["groups"]}
        assert (await http.get("/groups", params={"limit": 0})).status_code == 422
        text = (await http.get("/metrics")).text
    await stop(*tasks)
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert series["headrace_replay_step"] == "8.0"
    assert series['headrace_replay_run_groups_total{what="trained"}'] == "32.0"
    assert float(series["headrace_replay_drift_count"]) > 0 and float(series["headrace_replay_headroom_count"]) > 0


async def test_what_only_the_server_knows_is_exported_too(redis_url):
    metrics = ReplayMetrics(CollectorRegistry())
    metrics.configured(2, 60)
    client, keys = client_of(redis_url), Keys("run")

    async def dead_letters() -> float | None:
        await metrics.look(client, keys, 7.0, 60.0)
        return metrics.registry.get_sample_value("headrace_replay_dead_letters_total")

    assert await dead_letters() == 0, "there from the start, so that an increase is seen"
    async with client.pipeline() as pipe:
        for _ in range(3 * DEAD_LETTERS_KEPT):
            bury(pipe, keys, "actor", "a reason", b"data")
        await pipe.execute()
    assert await client.xlen(keys.dead) < 2 * DEAD_LETTERS_KEPT
    assert await dead_letters() == 3 * DEAD_LETTERS_KEPT, "it counts on where the stream is full"
    value = {s.name: s.value for family in metrics.registry.collect() for s in family.samples}
    assert value["headrace_replay_redis_memory_bytes"] > 100_000
    assert (value["headrace_replay_waiting_seconds"], value["headrace_replay_waiting_limit_seconds"]) == (7, 60)
    assert (value["headrace_replay_max_lag_versions"], value["headrace_replay_run_steps"]) == (2, 60)
