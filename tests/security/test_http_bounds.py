"""The bounds that docs/security.md gives for HTTP are those of the services, and metrics are for this machine alone."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.env_search import app, requests, server
from services.replay.window import answers, http
from shared import http_server
from shared.config import build
from tests.conftest import REPOSITORY

PAGE = (Path(REPOSITORY) / "docs" / "security.md").read_text()
MIB = 2**20


def row(service: str, holds: str) -> str:
    """The line about `service` with these words in the table of HTTP."""
    [found] = re.findall(rf"^\| {service} \| (.*{holds}.*) \|$", PAGE, re.MULTILINE)
    return found


def test_the_page_gives_the_bounds_of_the_code():
    both = f"{http_server.CONNECTIONS:,} (replay) or {server.CONNECTIONS:,} (env_search) connections, more get 503"
    assert both in row("both", "connections")
    search = row("env_search", "a body")
    assert f"{requests.INTAKE_BYTES // MIB} MiB of requests under way together" in search
    assert f"{app.MAX_WAITING:,} queries waiting; {app.DEADLINE_S:g} s a request" in search
    replay = row("replay", "GET only")
    assert f"{answers.AT_ONCE} requests at once and {answers.WAITING} waiting" in replay
    assert f"{http.PAYLOAD_BYTES // MIB} MiB of a payload" in replay


SERVES = """
import sys
from shared.config import build
from shared.metrics import serve_metrics
print(serve_metrics(0, build({}).run.metrics_host), flush=True)
sys.stdin.read()
"""


def test_metrics_are_served_to_this_machine_alone_unless_a_setting_says_otherwise():
    assert build({}).run.metrics_host == "127.0.0.1"
    serving = subprocess.Popen(
        [sys.executable, "-c", SERVES], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with serving:
        assert serving.stdin and serving.stdout
        port = int(serving.stdout.readline())
        listening = [c.laddr for c in psutil.Process(serving.pid).net_connections("tcp") if c.status == "LISTEN"]
        serving.stdin.close()
    assert [tuple(address) for address in listening] == [("127.0.0.1", port)]


@pytest.mark.parametrize("service", ["actor", "learner"])
def test_a_service_serves_its_metrics_where_the_setting_says(service: str):
    calls = [
        call
        for file in (Path(REPOSITORY) / "services" / service).rglob("*.py")
        for call in re.findall(r"(?:serve|open)_metrics\(.*\)", file.read_text())
    ]
    assert calls and all(".run.metrics_host" in call for call in calls), calls
