"""The password of a Redis server stays out of everything a service says and of its command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.run.ports import free_port
from shared.config import without_password
from tests.conftest import REPOSITORY

SECRET = "sEcr3t-0f-the-test"


def say(arguments: list[str], folder: Path, url: str) -> str:
    """All that a process which cannot start says."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment |= {"HEADRACE_REDIS__URL": url, "HEADRACE_REDIS__WAIT_S": "0.2", "HEADRACE_LOG": "debug"}
    environment |= {"HEADRACE_REPLAY__PORT": "0"}
    environment |= {"HEADRACE_RUN__ROOT": str(folder), "PYTHONPATH": str(REPOSITORY)}
    environment |= {"HEADRACE_MODEL__PATH": str(REPOSITORY / "examples/atlas/policy")}
    environment |= {"HEADRACE_DATA__TRAIN": str(folder / "rows.jsonl"), "HEADRACE_ENV__KIND": "single"}
    (folder / "rows.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "service", ["replay", *(pytest.param(s, marks=pytest.mark.slow) for s in ("actor", "learner"))]
)
@pytest.mark.parametrize("server", ["away", "refuses"])
def test_a_service_that_cannot_use_its_redis_names_it_without_the_password(
    service: str, server: str, tmp_path: Path, redis_server_url: str
):
    real = redis_server_url.rpartition("@")[2]
    host = f"127.0.0.1:{free_port()}/0" if server == "away" else real
    said = say(["-m", f"services.{service}"], tmp_path, f"redis://user:{SECRET}@{host}")
    assert SECRET not in said and host in said
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:a@b:1/0", "redis://b:1/0"),
        ("redis://u:a@x@b:1/0", "redis://b:1/0"),
        ("unix://:a@/tmp/s", "unix:///tmp/s"),
        ("http://u:a@b/retrieve", "http://b/retrieve"),
        ("http://b:1", "http://b:1"),
        ("redis://b:1/0?password=a", "redis://b:1/0"),
        ("redis://b:1/0?db=2&password=a&protocol=3", "redis://b:1/0?db=2&protocol=3"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str):
    assert without_password(url) == shown
