"""Which names the replay window answers to, and that it takes nothing but reads of its own things."""

import asyncio

import httpx
import pytest
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from services.replay.http import make_app
from services.replay.own_names import is_own
from services.replay.service import Replay
from shared.cancellation import stop
from shared.http_server import listen, serve_http
from tests.replay.peers import Questions, client_of

OURS = [
    "127.0.0.1:8001",
    "127.0.0.1",
    "[::1]:8001",
    "[::ffff:127.0.0.1]",
    "10.0.0.7:80",
    "localhost:8001",
    "replay:8001",
]
OURS += ["gpu-box", "a.localhost:1", "", "runs.example.org", "RUNS.example.org:443"]
THEIRS = [
    "evil.example.com",
    "evil.example.com:8001",
    "127.0.0.1.evil.com",
    "1.2.3",
    "localhost.evil.com",
    "[::1",
    "a.b:x",
]


@pytest.mark.parametrize("host", OURS)
def test_addresses_names_without_a_dot_and_the_public_name_are_ours(host: str):
    assert is_own(host, "runs.example.org")


@pytest.mark.parametrize("host", [*THEIRS, "runs.example.org"])
def test_registered_names_are_not(host: str):
    assert not is_own(host)


async def test_a_page_that_came_under_another_name_reads_nothing(make_config):
    config = make_config(replay={"public_name": "runs.example.org"})
    app = make_app(Replay(config, client_of(config.redis.url), Questions(5), None, CollectorRegistry()))
    sock = listen("127.0.0.1", 0, "replay.port")
    web = asyncio.create_task(serve_http(app, sock))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", timeout=20) as http:
        for path in ("/", "/health", "/metrics", "/groups", "/window/now", "/page/style.css", "/nothing"):
            answer = await http.get(path, headers={"Host": "rebound.example.com"})
            assert answer.status_code == 421 and "replay.public_name" in answer.text
            assert (await http.get(path)).status_code != 421
            assert (await http.get(path, headers={"Host": "runs.example.org"})).status_code != 421
        for path in ("/page/..%2f..%2fetc%2fpasswd", "/page/%2e%2e/own_names.py", "/groups/..%2f..%2fx/payload"):
            assert (await http.get(path)).status_code in (404, 503)
        assert (await http.post("/groups", content=b"x" * 2**20)).status_code == 405
    await stop(web)


async def test_no_route_takes_a_path_or_an_address_and_none_writes(make_config):
    config = make_config()
    app = make_app(Replay(config, client_of(config.redis.url), Questions(5), None, CollectorRegistry()))
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 8
    for route in routes:
        assert route.methods == {"GET"}, route.path
        assert "path" not in route.path.partition("{")[2], "a {name:path} would take slashes"
        taken = {p.name for p in [*route.dependant.path_params, *route.dependant.query_params]}
        assert taken <= {"id", "name", "limit", "offset", "after"}, route.path
