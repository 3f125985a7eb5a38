"""The replay window over real HTTP and a real Redis: what the page is told, and what it can do to the run (nothing)."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from services.replay.http import make_app
from services.replay.service import Replay
from services.replay.window.answers import RequestLimit
from services.replay.window.http import PAYLOAD_BYTES
from shared.cancellation import stop
from shared.config import Config
from shared.http_server import listen, serve_http
from shared.messages import Batch, Record
from shared.payload import decode_payload
from shared.streams import Keys
from tests.replay.peers import PeerActor, PeerLearner, Questions, client_of
from tests.replay.stored_groups import STEP, fill

POLICY = Path(__file__).resolve().parents[2] / "examples" / "atlas" / "policy"
TOKENIZER = POLICY / "tokenizer.json"
Make = Callable[..., Config]


@asynccontextmanager
async def served(
    config: Config, url: str = "", within_s: float = 60
) -> AsyncIterator[tuple[Replay, httpx.AsyncClient]]:
    """A running service and a client of its HTTP side."""
    service = Replay(config, client_of(url or config.redis.url), Questions(500), None, CollectorRegistry())
    sock = listen("127.0.0.1", 0, "replay.port")
    base = f"http://127.0.0.1:{sock.getsockname()[1]}"
    tasks = [asyncio.create_task(serve_http(make_app(service), sock)), asyncio.create_task(service.run())]
    try:
        async with httpx.AsyncClient(base_url=base, timeout=20) as http, asyncio.timeout(within_s):
            while service.state is None:
                await asyncio.sleep(0.01)
                assert not tasks[1].done(), tasks[1].exception()
            yield service, http
    finally:
        await stop(*tasks)


async def _filled(make_config: Make, groups: int = 20, rollouts: int = 3, **sections) -> Config:
    sections = {"run": {"steps": 100}, "replay": {"capacity": 600}, "model": {"path": str(POLICY)}} | sections
    config = make_config(**sections)
    await fill(client_of(config.redis.url), config, Tokenizer.from_file(str(TOKENIZER)), groups, rollouts)
    return config


async def test_the_columns_are_the_buffer_by_cached_headroom(make_config: Make):
    async with served(await _filled(make_config)) as (service, http):
        shown = (await http.get("/window/groups")).json()
        rows = [service.state.buffer.row(id) for id in shown["id"]]
        assert shown["total"] == len(rows) == 20
        assert [row.headroom for row in rows] == sorted((row.headroom for row in rows), reverse=True)
        for key in ("uses", "tokens", "bytes", "right", "scored"):
            assert shown[key] == [getattr(row, key) for row in rows]
        assert shown["stored"] == [row.step for row in rows]
        assert shown["headroom"] == pytest.approx([row.headroom for row in rows], abs=1e-4)
        for row, drift in zip(rows, shown["drift"], strict=True):
            assert drift is None if math.isnan(row.drift) else drift == pytest.approx(row.drift, rel=1e-3)
        assert None in shown["drift"], "a group that was never scanned has no Drift"


async def test_what_has_not_changed_is_not_sent_again(make_config: Make):
    async with served(await _filled(make_config)) as (_, http):
        for path in ("/", "/page/main.js", "/tokenizer.json", "/window/groups", "/window/steps"):
            first = await http.get(path)
            again = await http.get(path, headers={"If-None-Match": first.headers["ETag"]})
            other = await http.get(path, headers={"If-None-Match": '"another"'})
            assert (first.status_code, again.status_code, other.status_code) == (200, 304, 200), path
            assert again.content == b""


async def test_the_marks_are_those_of_the_last_selection_and_the_tag_moves_with_it(make_config: Make):
    config = make_config(run={"steps": 8})
    async with served(config) as (_, http):
        tags = {(await http.get("/window/groups")).headers["ETag"]}

        class Looking(PeerLearner):
            async def train(self, batch: Batch) -> list[Record]:
                tags.add((await http.get("/window/groups")).headers["ETag"])
                return await super().train(batch)

        learner, actor = Looking(config.redis.url, config), PeerActor(config.redis.url, config, 0)
        peers = [asyncio.create_task(learner.run()), asyncio.create_task(actor.run())]
        try:
            await learner.until_finished(60)
            shown, glance = (await http.get("/window/groups")).json(), (await http.get("/window/now")).json()
        finally:
            await stop(*peers)
        marks = dict(zip(shown["id"], shown["mark"], strict=True))
        step, batch = learner.trained[-1][1].step, learner.trained[-1][1]
        scanned = [id for scan in learner.scans if scan.step == step for id in scan.ids]
        assert shown["selected_step"] == step == 7
        for id, mark in marks.items():
            assert mark == (2 if id in batch.replay else 1 if id in scanned else 0)
        assert len(tags) == 1 + config.run.steps, "a tag for each state that was seen"
        assert (glance["step"], glance["finished"], glance["waiting_for"]) == (8, True, "")


async def test_the_steps_are_those_of_the_events_and_only_the_new_ones_are_sent(make_config: Make):
    async with served(await _filled(make_config)) as (_, http):
        everything = (await http.get("/window/steps")).json()
        assert everything["columns"]["step"] == list(range(STEP))
        assert {len(column) for column in everything["columns"].values()} == {STEP}
        assert everything["columns"]["age_max"][0] == 5
        assert [e["round"] for e in everything["evals"]] == [0, STEP // 2]
        assert "markup" in everything["notices"][0]["text"]
        assert (await http.get("/window/steps", params={"after": STEP - 3})).json()["columns"]["step"] == [38, 39]
        assert (await http.get("/window/steps", params={"after": -2})).status_code == 422


async def test_a_payload_comes_as_it_was_stored_and_reading_it_is_not_a_use(make_config: Make):
    config = await _filled(make_config)
    stored = await client_of(config.redis.url).get(Keys(config.run.name).payload("s00000003"))
    async with served(config) as (service, http):
        before = service.state.buffer.row("s00000003")
        got = await http.get("/groups/s00000003/payload")
        assert got.content == stored and got.headers["Content-Type"] == "application/octet-stream"
        payload = decode_payload(got.content, config.run.name)
        reference = await http.get("/groups/s00000003/reference")
        assert len(reference.content) == 4 * len(payload.l_gen)
        assert service.state.buffer.row("s00000003") == before
        reads = service.metrics.registry.get_sample_value("headrace_replay_window_payload_reads_total")
        assert reads == 1
        about = (await http.get("/groups/s00000003")).json()
        assert about["header"]["rewards"] == [1.0, 0.0, 1.0] and about["row"]["uses"] == before.uses
        assert len(about["task"]["ground_truth"]) == 1
        for path in ("/groups/nobody", "/groups/nobody/payload", "/groups/..%2Freplay:state/payload"):
            assert (await http.get(path)).status_code == 404, path


async def test_a_payload_that_is_too_large_for_a_page_is_not_read(make_config: Make):
    config = await _filled(make_config, groups=1)
    client, key = client_of(config.redis.url), Keys(config.run.name).payload("s00000000")
    stored = await client.strlen(key)
    assert 0 < stored < PAYLOAD_BYTES == 64 * 2**20
    async with served(config) as (service, http):
        await client.setrange(key, PAYLOAD_BYTES, b"x")  # the server fills what is between
        answer = await http.get("/groups/s00000000/payload")
        await client.delete(key)
        assert answer.status_code == 413
        assert answer.json()["detail"] == f"this is {PAYLOAD_BYTES + 1} bytes, the page reads up to {PAYLOAD_BYTES}."
        assert service.metrics.registry.get_sample_value("headrace_replay_window_payload_reads_total") == 0


async def test_a_header_lives_as_long_as_its_payload(make_config: Make):
    config = make_config(run={"steps": 8})
    keys, client = Keys(config.run.name), client_of(config.redis.url)
    learner, actor = PeerLearner(config.redis.url, config), PeerActor(config.redis.url, config, 0)
    async with served(config):
        peers = [asyncio.create_task(learner.run()), asyncio.create_task(actor.run())]
        while not learner.finished:
            await asyncio.sleep(0.02)
        await stop(*peers)
    ids: Any = await client.hkeys(keys.prefix + "replay:headers")
    there: Any = await client.keys(keys.payload("*"))
    headers = {id.decode() for id in ids}
    payloads = {key.decode().rpartition(":")[2] for key in there}
    assert headers and headers == payloads


@pytest.mark.slow
async def test_nothing_can_be_written_and_nothing_foreign_can_run(make_config: Make):
    async with served(await _filled(make_config, groups=2)) as (_, http):
        for path in ("/", "/window/now", "/window/groups", "/groups/s00000001", "/groups/s00000001/payload"):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                assert (await http.request(method, path)).status_code == 405, (method, path)
            answer = await http.get(path, headers={"Origin": "http://elsewhere.example"})
            assert answer.status_code == 200
            assert not [name for name in answer.headers if name.startswith("access-control")], (
                "no page elsewhere may read"
            )
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy and "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/page/..%2Fhttp.py", "/page/%2Fetc%2Fpasswd", "/page/nothing.js"):
            assert (await http.get(path)).status_code == 404, path


async def test_without_a_tokenizer_the_page_is_told_so(make_config: Make):
    async with served(await _filled(make_config, groups=2, model={"path": "/nowhere"})) as (_, http):
        answer = await http.get("/tokenizer.json")
        assert answer.status_code == 404 and "model.path" in answer.json()["detail"]


async def test_where_redis_forbids_payloads_a_sentence_says_so(make_config: Make, redis_server_url: str):
    config = await _filled(make_config, groups=2)
    keys, admin = Keys(config.run.name), client_of(redis_server_url)
    if int((await admin.info("server"))["redis_version"].split(".")[0]) < 7:
        pytest.skip("this Redis is older than 7 and cannot forbid reading some keys")
    rules = ["on", ">pw", "+@all", f"~{keys.prefix}[^p]*", f"%W~{keys.payload('*')}"]
    await admin.execute_command("ACL", "SETUSER", "blind", "reset", *rules)
    try:
        async with served(config, f"redis://blind:pw@{redis_server_url.rpartition('@')[2]}") as (_, http):
            answer = await http.get("/groups/s00000001/payload")
            assert answer.status_code == 403 and "no right" in answer.json()["detail"]
    finally:
        await admin.execute_command("ACL", "DELUSER", "blind")


async def test_a_crowd_is_refused_and_not_queued():
    limit, entered = RequestLimit(at_once=2, waiting=1), []

    async def visit(leave: asyncio.Event) -> str:
        try:
            async for _ in limit():
                entered.append(1)
                await leave.wait()
        except Exception as error:  # noqa: BLE001  FastAPI's own class of refusals, told by its status
            return str(getattr(error, "status_code", error))
        return "served"

    leave = asyncio.Event()
    visits = [asyncio.create_task(visit(leave)) for _ in range(5)]
    await asyncio.sleep(0.01)
    assert len(entered) == 2
    leave.set()
    assert sorted(await asyncio.gather(*visits)) == ["503", "503", "served", "served", "served"]


async def test_after_a_restart_the_marks_are_those_of_the_batch_on_record(make_config: Make):
    config = make_config(run={"steps": 8}, replay={"capacity": 99})  # what was replayed last is still there
    learner, actor = PeerLearner(config.redis.url, config, every=99), PeerActor(config.redis.url, config, 0)
    async with served(config):
        peers = [asyncio.create_task(learner.run()), asyncio.create_task(actor.run())]
        while not learner.finished:
            await asyncio.sleep(0.02)
        await stop(*peers)
    async with served(config) as (_, http):
        shown = (await http.get("/window/groups")).json()
    replayed = {id for id, mark in zip(shown["id"], shown["mark"], strict=True) if mark == 2}
    assert replayed and replayed == set(learner.trained[-1][1].replay) & set(shown["id"])
