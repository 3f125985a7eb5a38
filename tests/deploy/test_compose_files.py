"""The compose files as text: nothing needs an engine, and `docker compose config` only its command line."""

import os
import re
import shutil
import subprocess

import pytest

from tests.e2e.command import REPOSITORY

FORMS = [
    ("compose.yaml",),
    ("compose.yaml", "compose.gpu.yaml"),
]


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="docker compose is not installed")
@pytest.mark.parametrize("files", FORMS, ids=["cpu", "gpu"])
def test_only_the_password_is_missing_and_without_it_the_start_fails_with_one_sentence(files):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    words = [word for file in files for word in ("-f", str(REPOSITORY / file))]
    command = ["docker", "compose", "--env-file", os.devnull, *words, "--profile", "monitoring", "config", "-q"]
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert refused.returncode and "set HEADRACE_REDIS_PASSWORD in .env, see .env.example" in refused.stderr
    environment["HEADRACE_REDIS_PASSWORD"] = "x"
    taken = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (taken.returncode, taken.stderr) == (0, "")


def test_env_example_explains_every_variable_of_the_compose_files():
    told = (REPOSITORY / ".env.example").read_text()
    text = "".join((REPOSITORY / name).read_text() for name in FORMS[1])
    passed_on = re.findall(r"^ +(HEADRACE_\w+):$", text, re.MULTILINE)
    named = {*re.findall(r"\$\{(\w+)", text), *passed_on}
    assert len(named) > 15 and [name for name in sorted(named) if f"{name}=" not in told] == []
    assert "HEADRACE_REDIS_PASSWORD=\n" in told, "no default password"


def test_every_published_port_is_the_loopbacks():
    text = (REPOSITORY / "compose.yaml").read_text()
    ports = re.findall(r"^ +ports: \[(.*)\]$", text, re.MULTILINE)
    assert len(ports) == 3 and all(port.startswith('"127.0.0.1:') for port in ports)
